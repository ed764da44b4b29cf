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

from nasflow.clean_text import clean_text
from nasflow.errors import NasflowError
from nasflow.job.spec import job_dir
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.runs import Run, run_dir
from nasflow.training_service.cluster.storage.scratch import own_folder
from nasflow.training_service.machine.environment import inherited

from ..server.secrets import read_secret_block
from .log_lines import LogLines

FLOW = "nas-job"
"""Name of the flow."""

_LOOK = 2.0  # seconds between two looks at the log


@flow(name=FLOW, description="A job of a search: trains its trials in a separate process.", persist_result=False)
def job(
    *,
    root: str | None,
    job_id: str,
    token: str,
    program: list[str],
    nasflow_version: str,
    environment: dict[str, str],
    secret_blocks: dict[str, str],
    withheld: list[str],
    pass_env: list[str],
    python: str | None = None,
    scratch: str | None = None,
) -> State[Any]:
    """Run one job to its end. `nasflow.flows.pool.service.PrefectService` creates its flow runs.

    The state is COMPLETED or FAILED if the job's process ended by itself, CANCELLED if its search ended it, and CRASHED
    if something else did.

    Args:
        root: the folder of the study's jobs and checkpoints; None if this worker does not see it
        job_id: the job
        token: identifies this start of the job
        program: arguments of the interpreter
        nasflow_version: of the search
        environment: variables of the program
        secret_blocks: Prefect's blocks with the values of more variables, by their names
        withheld: variables of the worker that the program does not inherit
        pass_env: variables that it inherits although they may hold secrets
        python: the interpreter; by default that of this flow run
        scratch: a folder on this worker's own disk, where there is no root; by default that of temporary files
    """
    if (here := version("nasflow")) != nasflow_version:
        return Failed(message=f"this worker has nasflow {here}, and the search {nasflow_version}: install the same")

    def variables() -> dict[str, str]:
        secret = {name: read_secret_block(block) for name, block in secret_blocks.items()}
        return {**inherited(withheld, pass_env), **environment, **secret}

    command = [python or sys.executable, *program]
    if root is None:
        try:
            with own_folder(scratch) as shown:
                return _run_far(Run(shown, job_id, token), [*command, "--shown", str(shown)], variables())
        except NasflowError as error:
            return Failed(message=f"this worker can't run jobs: {error}")
    run = Run(Path(root), job_id, token)
    folder = job_dir(run.root, job_id)
    if not os.access(folder, os.W_OK):
        return Failed(
            message=f"this worker can't write in {folder}: it must see the search's work_dir under this path, or "
            "training_service.storage must say where files are"
        )
    if not run.is_current():
        return Cancelled(message="its search has ended it before it began")
    code = _run(run, command, variables(), folder / "job.log")
    if (ended := run.ended()) is None:
        return Crashed(message=f"the job's program ended without a word (exit code {code})")
    return _state(ended, run)


def _run_far(run: Run, command: Sequence[str], variables: Mapping[str, str]) -> State[Any]:
    """Run a program that brings the job here, and shows in the root of `run` what becomes of it."""
    output = run.root / "output"
    run_dir(run.root, run.job_id).mkdir(parents=True)
    code = _run(run, command, variables, output)
    if (ended := run.ended()) is not None:
        return _state(ended, run)
    words = clean_text(output.read_text(errors="replace")).strip().splitlines()
    if words:
        return Failed(message=f"this worker can't run the job: {words[-1][:300]}")
    if code == 0:
        return Cancelled(message="its search has ended it, or it has begun elsewhere")
    return Crashed(message=f"the job's program ended without a word (exit code {code})")


def _run(run: Run, command: Sequence[str], variables: Mapping[str, str], output: Path) -> int:
    """Run a program to its end, tell Prefect what the job prints, and return its exit code."""
    log = LogLines(job_dir(run.root, run.job_id) / "job.log")
    with _running(command, variables, output) as process:
        while _runs(process):
            _tell(log)
    _tell(log)
    return process.returncode


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


def _state(ended: JobState, run: Run) -> State[Any]:
    """Return the final state of the flow run of a job that has ended."""
    if ended.status is not JobStatus.EXITED:
        return (Crashed if run.is_current() else Cancelled)(message=ended.reason)
    if ended.exit_code == 0:
        return Completed(message="the job has trained its trials; the search's page has their scores")
    how = f"exit code {ended.exit_code}" if ended.signal is None else f"signal {ended.signal}"
    return Failed(message=f"the job ended with {how}: {ended.reason}")
