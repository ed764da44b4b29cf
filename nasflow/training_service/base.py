"""The contract of a training service: where jobs run. Everything above sees only this."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from nasflow.job.spec import JobSpec


class JobStatus(StrEnum):
    """What became of a job's process, as far as the service can tell. What its trials did is in its events.

    Attributes:
        PENDING: waits for a slot.
        RUNNING: has a slot.
        EXITED: its own process ended, by itself or by a signal.
        CANCELLED: `cancel` ended it.
        LOST: its host or worker is gone, or the job is unknown.
    """

    PENDING = "pending"
    RUNNING = "running"
    EXITED = "exited"
    CANCELLED = "cancelled"
    LOST = "lost"

    @property
    def finished(self) -> bool:
        """The job's process will do nothing more."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)


class JobState(BaseModel):
    """A job's status and the evidence for it.

    Attributes:
        exit_code: of an EXITED process, None if a signal ended it.
        signal: the number of the signal that ended it, None otherwise.
        slot: where it runs or ran, for people, e.g. `cpu-0` or `gpu-1.0`.
        reason: one line for people: why it was lost, or the last line of its log.
        oom_kills: how many processes of the job's cgroup the kernel ended for want of memory when the job's ended.
        peak_rss: bytes that the largest of the job's processes held at its height.
        memory_share: bytes that its slot may count on, the others' left to them.

    What a service can't find out is None.
    """

    model_config = ConfigDict(frozen=True)

    status: JobStatus
    exit_code: int | None = None
    signal: int | None = None
    slot: str | None = None
    reason: str = ""
    oom_kills: int | None = None
    peak_rss: int | None = None
    memory_share: int | None = None


class JobHandle(BaseModel):
    """Names a submitted job. Plain JSON: it survives its controller in the study's database."""

    model_config = ConfigDict(frozen=True)

    service: str
    job_id: str
    data: dict[str, Any] = {}


class TrainingService(ABC):
    """Runs jobs somewhere and brings their files back.

    A service owns one root folder a study (layout: `nasflow.job.spec`). It starts `python -m
    nasflow.training.runner <root>/jobs/<job_id>/job.json`, or the same function in a warm process, so that each job
    is a process of its own, and a job's end, however violent, harms no other job.

    Promises every implementation keeps (`nasflow.testing.training_service` checks them), but for one that runs jobs in
    the process that asks for them, which says what it can't keep (`nasflow.testing.in_process_service`):

    - `submit` returns at once; a job waits (PENDING) until a slot is free. A job id is submitted once: again, and the
      handle of the first time comes back, unless that job is LOST or CANCELLED; then it starts anew and goes on from
      the checkpoints in the root.
    - A handle, put through JSON, works in another process that opened the service on the same root, also after the
      first controller was killed. Jobs live on without a controller.
    - `events` gives whole lines only, in order, the same for the same offset at any time; the lines of a finished
      job are complete once `status` has said finished.
    - `cancel` ends the job's whole process tree before it returns and is harmless on a finished or unknown job.
    - `cleanup` cancels what runs, ends every process of the service for this root, and leaves checkpoints, events and
      logs in place. Calling it twice is harmless.
    - All methods may be called from several threads at once.
    """

    @abstractmethod
    def validate(self) -> None:
        """Raise ServiceError, in one clear sentence, if the service can't run jobs as configured. Starts nothing."""

    @abstractmethod
    def prepare(self) -> None:
        """Make ready for jobs (start or re-attach to workers, ship code). Harmless when repeated."""

    @abstractmethod
    def submit(self, spec: JobSpec) -> JobHandle:
        """Queue a job."""

    @abstractmethod
    def status(self, handle: JobHandle) -> JobState:
        """Where the job stands. An unknown job is LOST."""

    @abstractmethod
    def events(self, handle: JobHandle, offset: int = 0) -> tuple[list[str], int]:
        """The whole event lines from byte `offset` on, and the offset to ask for next."""

    @abstractmethod
    def log_tail(self, handle: JobHandle, lines: int = 20) -> str:
        """The last lines of the job's standard output and error."""

    @abstractmethod
    def fetch(self, path: str) -> Path:
        """Bring `path` (relative to the root, a file or folder) to this machine; where it lies here.

        Raises:
            FileNotFoundError: there is no such path.
        """

    @abstractmethod
    def cancel(self, handle: JobHandle) -> None:
        """End the job now; its finished epochs are kept."""

    @abstractmethod
    def list(self) -> Sequence[JobHandle]:
        """The jobs of this root that are pending or running."""

    @abstractmethod
    def slots(self) -> Sequence[str]:
        """The names of the places that can each run one job at a time."""

    @abstractmethod
    def cleanup(self) -> None:
        """End everything the service runs for this root."""
