"""Runs jobs on a Dask cluster: each is a task that starts a program on a worker and waits for it."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import distributed

from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.cluster.dask import DaskServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterService, ClusterSilentError
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.local.service import RUNNER
from nasflow.training_service.local.slots import job_environment
from nasflow.training_service.machine.environment import inherited

_POLL_SECONDS = 1.0
_CONNECT_WITHIN = 10.0  # seconds
_ANSWERS_WITHIN = 60.0  # seconds; a busy scheduler is slow
# States of a task by their meaning here (https://distributed.dask.org/en/stable/scheduling-state.html).
_ALIVE = {
    "waiting": "waits",
    "queued": "waits for a free thread",
    "no-worker": "waits for a worker with its resources",
    "processing": "is assigned to a worker",  # where it may wait too; only its program shows that it runs
}
_ENDED = {"memory", "erred"}


class TextClient(distributed.Client):
    """A client that unpickles nothing that workers send, neither results nor errors. Its futures have no results.

    It waits for an answer for a limited time, after which it raises TimeoutError.

    One that can't connect ends its thread. Left to the garbage collector, it would stay in memory with that thread,
    and if collected while another client starts, both wait for Dask's lock on threads for ever.
    """

    def __init__(self, address: str, **options: Any):
        try:
            super().__init__(address, **options)  # type: ignore[no-untyped-call]
        except BaseException:
            self.close()  # type: ignore[no-untyped-call]
            self._loop_runner.stop()  # which `close` leaves running where connecting has failed
            raise

    def sync(self, func: Callable[..., Any], *args: Any, callback_timeout: Any = None, **options: Any) -> Any:
        """Call an asynchronous function and wait for its result, as all methods that ask the scheduler do."""
        limit = callback_timeout or _ANSWERS_WITHIN
        return super().sync(func, *args, callback_timeout=limit, **options)  # type: ignore[no-untyped-call]

    async def _ensure_connected(self, timeout: float | None = None) -> None:
        await super()._ensure_connected(timeout)  # type: ignore[no-untyped-call]
        if self.scheduler_comm is not None:
            self.scheduler_comm.comm.deserialize = False

    def _handle_key_in_memory(self, key: Any = None, type: Any = None, workers: Any = None) -> None:
        super()._handle_key_in_memory(key, None, workers)  # type: ignore[no-untyped-call]

    def _handle_task_erred(self, key: Any = None, exception: Any = None, traceback: Any = None) -> None:
        super()._handle_task_erred(key, "the task failed", None)  # type: ignore[no-untyped-call]


class DaskService(ClusterService):
    """Runs each job as a task with the run's name as its key.

    The scheduler keeps the task when its client is gone. When a worker is lost, Dask moves its tasks to other workers;
    a job that had begun is LOST nevertheless, so that its restart is on record.

    Args:
        config: the scheduler's address, and the resources of each job.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
        secrets: which environment variables jobs don't inherit.
    """

    kind = "dask"

    def __init__(
        self,
        config: DaskServiceConfig,
        root: Path,
        runner: str = RUNNER,
        secrets: JobSecrets = NO_SECRETS,
    ):
        super().__init__(root, config.max_jobs, _POLL_SECONDS, config.abandoned_after, runner, storage=config.storage)
        self._config = config
        self._withheld = (
            secrets.withheld - secrets.needed - self._storage.needed_variables()
        )  # jobs have the cluster's environment
        self._client: distributed.Client | None = None

    def validate(self) -> None:  # noqa: D102
        super().validate()
        workers = self._ask(lambda client: client.scheduler_info(n_workers=-1))["workers"]
        if not workers:
            raise ServiceError(
                f"training_service: the Dask cluster at {self._config.address} has no workers; start some"
            )
        wanted = self._config.resources
        if not any(_has(worker["resources"], wanted) for worker in workers.values()):
            raise ServiceError(
                f"training_service.resources: no worker of the Dask cluster has {wanted}; start workers with "
                f"'--resources {' '.join(f'{name}={number:g}' for name, number in wanted.items())}'"
            )
        here = version("nasflow")
        answers = self._ask(lambda client: client.get_versions(packages=["nasflow"]))["workers"]
        for worker, answer in answers.items():
            there = answer["packages"].get("nasflow")
            if there != here:
                raise ServiceError(
                    f"training_service: Dask's worker {worker} needs nasflow {here}, and has {there or 'none'}"
                )

    def cleanup(self) -> None:  # noqa: D102
        super().cleanup()
        if self._client is not None:
            self._client.close()
            self._client = None

    def _give(self, run: Run) -> None:
        future = self._ask(
            lambda client: client.submit(
                start_on_worker,
                self._program(run),
                self._storage.import_path,
                self._storage.log(run.job_id),
                sorted(self._withheld),
                self._config.pass_env,
                key=run.name,
                pure=False,
                resources=self._config.resources or None,
            )
        )
        distributed.fire_and_forget(future)
        deadline = time.monotonic() + _CONNECT_WITHIN
        while run.name not in self._look():  # the client sends it in the background
            if time.monotonic() > deadline:
                raise ClusterSilentError(f"training_service: the Dask scheduler does not accept job {run.job_id}")
            time.sleep(0.005)

    def _look(self) -> Mapping[str, Seen]:
        prefix = name_prefix(self._root)

        # sent by value, because the scheduler may lack nasflow
        def tasks(dask_scheduler: Any) -> str:
            found = {key: task for key, task in dask_scheduler.tasks.items() if str(key).startswith(prefix)}
            texts = {key: str(getattr(task, "exception_text", "") or "") for key, task in found.items()}
            return json.dumps({key: (task.state, texts[key]) for key, task in found.items()})

        states = json.loads(self._ask(lambda client: client.run_on_scheduler(tasks)))
        return {key: _seen(state, exception) for key, (state, exception) in states.items()}

    def _withdraw(self, names: Sequence[str]) -> None:
        self._ask(lambda client: client.cancel([distributed.Future(name, client) for name in names], force=True))

    def _ask(self, what: Callable[[distributed.Client], Any]) -> Any:
        client = self._connect()
        try:
            return what(client)
        except OSError as error:  # as distributed's CommClosedError and TimeoutError, which may have no text, are
            why = str(error) or f"timed out after {_ANSWERS_WITHIN:g} s"
            raise ClusterSilentError(f"training_service: the Dask scheduler does not answer: {why}") from error
        except TypeError as error:  # by distributed, which was given a pickle
            raise ServiceError(f"training_service: a Dask worker's answer is refused: {error}") from error

    def _connect(self) -> distributed.Client:
        if self._client is not None and self._client.status != "running":
            self._client.close()
            self._client = None
        if self._client is None:
            try:
                self._client = TextClient(
                    self._config.address,
                    timeout=_CONNECT_WITHIN,
                    set_as_default=False,
                    name="nasflow",
                    deserializers=["msgpack"],  # of answers; no pickles
                )
            except TypeError as error:  # by distributed, where an address of TLS comes without certificates
                raise ServiceError(
                    f"training_service.address: Dask can't connect to {self._config.address} as it is configured: "
                    f"{error}; name the certificates in Dask's configuration (distributed.comm.tls)"
                ) from error
            except (OSError, ValueError) as error:
                raise ClusterSilentError(
                    f"training_service.address: there is no Dask scheduler at {self._config.address}: {error}"
                ) from error
        return self._client


def start_on_worker(
    command: Sequence[str], path: str | None, log: str, withheld: Sequence[str], pass_env: Sequence[str]
) -> int:
    """On a worker, start Python with a command line, wait for it, and return its exit code.

    Args:
        command: the arguments of the interpreter.
        path: its PYTHONPATH; None for the worker's.
        log: the file to which its output is appended.
        withheld: as for `inherited`.
        pass_env: as for `inherited`.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // distributed.get_worker().state.nthreads)
    environment = job_environment(threads, gpus=True) | ({} if path is None else {"PYTHONPATH": path})
    with Path(log).open("ab") as output:
        return subprocess.call(
            [sys.executable, *command],
            env=inherited(withheld, pass_env) | environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def _seen(state: str, exception: str) -> Seen:
    if state in _ENDED:
        return Seen(JobStatus.EXITED, f"Dask's task ended: {exception or 'its program reported nothing'}")
    return Seen(JobStatus.PENDING, f"Dask's task {_ALIVE.get(state, state)}")


def _has(resources: Mapping[str, float], wanted: Mapping[str, float]) -> bool:
    return all(resources.get(name, 0.0) >= number for name, number in wanted.items())
