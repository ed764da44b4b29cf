"""The flow of one job, which a worker of a work pool runs: it starts the job's program and waits for it."""

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Crashed, Failed

from nasflow.job.spec import job_dir
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.machine.environment import inherited

from ..server.secrets import read_secret_block
from .log_lines import LogLines

FLOW = "nas-job"
"""Name of the flow."""

_LOOK = 2.0  # seconds between two looks at the log


@flow(name=FLOW, description="A job of a search: trains its trials in a separate process.", persist_result=False)
def job(
    *,
    root: str,
    job_id: str,
    token: str,
    program: list[str],
    nasflow_version: str,
    environment: dict[str, str],
    secret_blocks: dict[str, str],
    withheld: list[str],
    pass_env: list[str],
    python: str | None = None,
) -> State[Any]:
    """Run one job to its end. `nasflow.flows.pool.service.PrefectService` creates its flow runs.

    The state is COMPLETED or FAILED if the job's process ended by itself, CANCELLED if its search ended it, and CRASHED
    if something else did.

    Args:
        root: the folder of the study's jobs and checkpoints
        job_id: the job
        token: identifies this start of the job
        program: arguments of the interpreter
        nasflow_version: of the search
        environment: variables of the program
        secret_blocks: Prefect's blocks with the values of more variables, by their names
        withheld: variables of the worker that the program does not inherit
        pass_env: variables that it inherits although they may hold secrets
        python: the interpreter; by default that of this flow run
    """
    run = Run(Path(root), job_id, token)
    if (here := version("nasflow")) != nasflow_version:
        return Failed(message=f"this worker has nasflow {here}, and the search {nasflow_version}: install the same")
    folder = job_dir(run.root, job_id)
    if not os.access(folder, os.W_OK):
        return Failed(message=f"this worker can't write in {folder}: it must see the search's work_dir under this path")
    if not run.is_current():
        return Cancelled(message="its search has ended it before it began")
    secret = {name: read_secret_block(block) for name, block in secret_blocks.items()}
    variables = {**inherited(withheld, pass_env), **environment, **secret}
    log = LogLines(folder / "job.log")
    with _running([python or sys.executable, *program], variables, folder / "job.log") as process:
        while _runs(process):
            _tell(log)
    _tell(log)
    return _state(run.ended(), run, process.returncode)


@contextmanager
def _running(command: Sequence[str], variables: Mapping[str, str], log: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """Start a program. When this block is left early, as upon a cancellation, the program is ended."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.terminate()  # it then ends all that the job started; the worker may kill this process meanwhile
            process.wait()


def _runs(process: "subprocess.Popen[bytes]") -> bool:
    """Wait a little for a program's end, and return whether it still runs."""
    try:
        process.wait(_LOOK)
    except subprocess.TimeoutExpired:
        return True
    return False


def _tell(log: LogLines) -> None:
    if text := log.new():
        get_run_logger().info("%s", text)


def _state(ended: JobState | None, run: Run, code: int) -> State[Any]:
    """Return the final state of the flow run of a job.

    Args:
        ended: how the job ended, as its program recorded.
        run: the run of the job.
        code: the exit code of its program.
    """
    if ended is None:
        return Crashed(message=f"the job's program ended without a word (exit code {code})")
    if ended.status is not JobStatus.EXITED:
        return (Crashed if run.is_current() else Cancelled)(message=ended.reason)
    if ended.exit_code == 0:
        return Completed(message="the job has trained its trials; the search's page has their scores")
    how = f"exit code {ended.exit_code}" if ended.signal is None else f"signal {ended.signal}"
    return Failed(message=f"the job ended with {how}: {ended.reason}")
