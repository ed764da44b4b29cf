"""Runs jobs in the calling process: for tests, notebooks and breakpoints, and as an example of a service."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from nasflow.config.services.debug import DebugServiceConfig
from nasflow.job.asked_end import asked_here, ended_when
from nasflow.job.spec import JobSpec, job_dir
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.debug_run import run_here
from nasflow.training_service.files.file_queue import JobRecords
from nasflow.training_service.files.shared_root import RootHere

_SLOT = "here"
_turn = threading.Lock()  # for all services: the random generators, the output and more belong to the process


@dataclass
class _Run:
    job_id: str
    cancelled: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)


class DebugService(RootHere):
    """Runs waiting jobs one after another inside the call of `status` for the last of them.

    Without separate processes it can't keep every promise: a job ends with its controller (it is then LOST and can be
    started again), a job's crash ends the controller, and `cancel` from another thread waits until a running job has
    noticed it, at its next batch. All services of a process run one job at a time.
    """

    def __init__(self, _: DebugServiceConfig, root: Path, runner: str = "nasflow.training.runner:run_job_file"):
        super().__init__(root)
        self._runner = runner
        self._records = JobRecords(self._root, "debug")
        self._running: _Run | None = None

    def prepare(self) -> None:  # noqa: D102
        self._root.mkdir(parents=True, exist_ok=True)

    def submit(self, spec: JobSpec) -> JobHandle:  # noqa: D102
        with self._records.lock():
            if self._look(spec.job_id).status in (JobStatus.LOST, JobStatus.CANCELLED):
                self._records.enqueue(spec)
        return _handle(spec.job_id)

    def status(self, handle: JobHandle) -> JobState:  # noqa: D102
        asked = asked_here()
        while True:
            with self._records.lock():
                state = self._look(handle.job_id)
            if state.status is not JobStatus.PENDING or asked() or not _turn.acquire(blocking=False):
                return state
            try:
                self._run_next()
            finally:
                _turn.release()

    def cancel(self, handle: JobHandle) -> None:  # noqa: D102
        with self._records.lock():
            if waiting := self._records.queued().get(handle.job_id):
                waiting.unlink()
                self._records.settle(handle.job_id, JobState(status=JobStatus.CANCELLED))
            run = self._running
        if run is not None and run.job_id == handle.job_id:
            run.cancelled.set()
            run.ended.wait()

    def list(self) -> Sequence[JobHandle]:  # noqa: D102
        with self._records.lock():
            running = [self._running.job_id] if self._running else []
            return [_handle(job_id) for job_id in (*running, *self._records.queued())]

    def slots(self) -> Sequence[str]:  # noqa: D102
        return (_SLOT,)

    def cleanup(self) -> None:  # noqa: D102
        for handle in reversed(self.list()):  # the running one last, for a waiting one would begin after it
            self.cancel(handle)

    def _look(self, job_id: str) -> JobState:
        if outcome := self._records.outcome(job_id):
            return outcome
        if self._running and job_id == self._running.job_id:
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
            run = self._running = _Run(job_id)
        try:
            self._run(run)
        finally:
            run.ended.set()

    def _run(self, run: _Run) -> None:
        state = JobState(status=JobStatus.LOST, slot=_SLOT, reason="it was interrupted")
        try:
            with ended_when(run.cancelled.is_set):
                code, asked = run_here(self._runner, job_dir(self._root, run.job_id)), asked_here()
            why = self.log_tail(_handle(run.job_id), 1)
            state = JobState(status=JobStatus.EXITED, exit_code=code, slot=_SLOT, reason=why)
            if code and asked():
                state = JobState(status=JobStatus.CANCELLED, slot=_SLOT)
        finally:
            with self._records.lock():
                self._records.settle(run.job_id, state)
                self._running = None


def _handle(job_id: str) -> JobHandle:
    return JobHandle(service="debug", job_id=job_id)
