"""Runs jobs in the calling process: for tests, notebooks and breakpoints, and as an example of a service."""

from collections.abc import Sequence
from pathlib import Path

from nasflow.config.services.debug import DebugServiceConfig
from nasflow.job.asked_end import asked_here
from nasflow.job.spec import JobSpec, job_dir
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.debug_run import TURN, RunHere, run_here
from nasflow.training_service.files.file_queue import JobRecords
from nasflow.training_service.files.shared_root import RootHere

_SLOT = "here"


class DebugService(RootHere):
    """Runs waiting jobs inside the call of `status` for the last of them, one at a time in a process.

    Without separate processes it can't keep every promise: a job ends with its controller (it is then LOST and can be
    started again), a job's crash ends the controller, and `cancel` from another thread waits for a job's next batch.
    """

    def __init__(self, _: DebugServiceConfig, root: Path, runner: str = "nasflow.training.runner:run_job_file"):
        super().__init__(root)
        self._runner = runner
        self._records = JobRecords(self._root, "debug")
        self._running: dict[str, RunHere] = {}  # at most one

    def prepare(self) -> None:  # noqa: D102
        self._root.mkdir(parents=True, exist_ok=True)

    def submit(self, spec: JobSpec) -> JobHandle:  # noqa: D102
        with self._records.lock():
            if self._look(spec.job_id).status in (JobStatus.LOST, JobStatus.CANCELLED):
                self._records.enqueue(spec)
        return _handle(spec.job_id)

    def status(self, handle: JobHandle) -> JobState:  # noqa: D102
        while True:
            with self._records.lock():
                state = self._look(handle.job_id)
            if state.status is not JobStatus.PENDING or asked_here()() or not TURN.acquire(blocking=False):
                return state
            try:
                self._run_next()
            finally:
                TURN.release()

    def cancel(self, handle: JobHandle) -> None:  # noqa: D102
        with self._records.lock():
            if waiting := self._records.queued().get(handle.job_id):
                waiting.unlink()
                self._records.settle(handle.job_id, JobState(status=JobStatus.CANCELLED))
        if run := self._running.get(handle.job_id):
            run.cancel()

    def list(self) -> Sequence[JobHandle]:  # noqa: D102
        with self._records.lock():
            return [_handle(job_id) for job_id in (*self._running, *self._records.queued())]

    def slots(self) -> Sequence[str]:  # noqa: D102
        return (_SLOT,)

    def cleanup(self) -> None:  # noqa: D102
        for handle in reversed(self.list()):  # the running one last, for a waiting one would begin after it
            self.cancel(handle)

    def _look(self, job_id: str) -> JobState:
        if outcome := self._records.outcome(job_id):
            return outcome
        if job_id in self._running:
            return JobState(status=JobStatus.RUNNING, slot=_SLOT)
        if job_id in self._records.queued():
            return JobState(status=JobStatus.PENDING)
        return JobState(status=JobStatus.LOST, reason="its process has ended, or it was never submitted")

    def _run_next(self) -> None:
        with self._records.lock():
            job_id, waiting = next(iter(self._records.queued().items()), ("", None))
            if waiting is None:  # it ran in another thread, or was cancelled
                return
            waiting.unlink()
            run = self._running[job_id] = RunHere()
        state = JobState(status=JobStatus.LOST, slot=_SLOT, reason="it was interrupted")
        with run.under_way():
            try:
                code, why = run_here(self._runner, job_dir(self._root, job_id)), self.log_tail(_handle(job_id), 1)
                state = JobState(status=JobStatus.EXITED, exit_code=code, slot=_SLOT, reason=why)
                if code and asked_here()():
                    state = JobState(status=JobStatus.CANCELLED, slot=_SLOT)
            finally:
                with self._records.lock():
                    self._records.settle(job_id, state)
                    del self._running[job_id]


def _handle(job_id: str) -> JobHandle:
    return JobHandle(service="debug", job_id=job_id)
