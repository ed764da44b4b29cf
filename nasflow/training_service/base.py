"""The contract of a training service, which runs jobs. All code above uses services through it only."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from nasflow.clean_text import CleanText
from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec

_Number = Annotated[int, Field(ge=-(2**63), lt=2**63)]  # what a host or a file may report


class JobStatus(StrEnum):
    """The status of a job's process, as far as the service knows. The results of its trials are in its events.

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
        """Whether the job's process has ended for good."""
        return self not in (JobStatus.PENDING, JobStatus.RUNNING)


class JobState(BaseModel):
    """A job's status and the evidence for it. A value that the service can't determine is None.

    Attributes:
        exit_code: of an EXITED process; None if a signal ended it.
        signal: the number of the signal that ended it; None otherwise.
        slot: the slot it runs or ran in, for display, e.g. `cpu-0` or `gpu-1.0`.
        where: for display: the job's name on its cluster, or the address of its page there; empty for nothing of both.
        reason: one line for display: why the job was lost, or the last line of its log.
        oom_kills: number of processes in the job's cgroup that the kernel killed for lack of memory around its end.
        peak_rss: peak resident memory of the largest of the job's processes, in bytes.
        memory_share: memory that the slot can use without taking from other slots, in bytes.
        limit: the key of `limits` that the job exceeded, for which it was ended; `job` also for the limit that its
            cluster has. None otherwise.
        stack: where its main thread was then, the innermost call first, a line each.
        began: false if its node could not even start it, which is no trial's fault; `reason` says why.
    """

    model_config = ConfigDict(frozen=True)

    status: JobStatus
    exit_code: _Number | None = None
    signal: _Number | None = None
    slot: CleanText | None = None
    where: CleanText = ""
    reason: CleanText = ""
    oom_kills: _Number | None = None
    peak_rss: _Number | None = None
    memory_share: _Number | None = None
    limit: CleanText | None = None
    stack: CleanText = ""
    began: bool = True


class JobHandle(BaseModel):
    """Identifies a submitted job. Plain JSON, kept in the study's database, so it survives the controller."""

    model_config = ConfigDict(frozen=True)

    service: str
    job_id: str
    data: dict[str, Any] = {}


class TrainingService(ABC):
    """Runs jobs somewhere and brings their files back.

    A service owns one root folder per study (layout: `nasflow.job.spec`). It starts `python -m
    nasflow.training.runner <root>/jobs/<job_id>/job.json`, or calls the same function in a warm process, so that each
    job has a separate process and even a crash affects no other job.

    Every implementation keeps these promises (`nasflow.testing.training_service` checks them). Only a service that runs
    jobs in the calling process is exempt from some (`nasflow.testing.in_process_service` checks the rest):

    - `submit` returns at once; a job waits (PENDING) until a slot is free. A job id is submitted once: submitting it
      again returns the same handle, unless that job is LOST or CANCELLED. Then it is started again and continues from
      the checkpoints in the root.
    - A handle, after a round trip through JSON, works in another process that opened the service on the same root, even
      if the first controller was killed. Jobs continue without a controller.
    - `events` returns only whole lines, in order, and always the same ones for the same offset. The lines of a job are
      complete once `status` reports it as finished.
    - `cancel` ends the job's whole process tree before it returns. It has no effect on a finished or unknown job.
    - `cleanup` cancels running jobs, ends every process of the service for this root, and keeps checkpoints, events and
      logs. It can be called twice.
    - All methods may be called from several threads at once.
    """

    @abstractmethod
    def validate(self) -> None:
        """Raise ServiceError, in one clear sentence, if the service can't run jobs as configured. Starts nothing."""

    @abstractmethod
    def prepare(self) -> None:
        """Get ready for jobs (start or re-attach to workers, ship code). Can be repeated."""

    @abstractmethod
    def submit(self, spec: JobSpec) -> JobHandle:
        """Queue a job."""

    @abstractmethod
    def status(self, handle: JobHandle) -> JobState:
        """Return the job's state. An unknown job is LOST."""

    @abstractmethod
    def events(self, handle: JobHandle, offset: int = 0) -> tuple[list[str], int]:
        """Return whole event lines from byte `offset` on, and the offset for the next call.

        They may be only a part of what is there; an empty list means that there are no more.
        """

    @abstractmethod
    def log_tail(self, handle: JobHandle, lines: int = 20) -> str:
        """Return the last lines of the job's standard output and error."""

    @abstractmethod
    def fetch(self, path: str) -> Path:
        """Copy `path` (a file or folder, relative to the root) to this machine if needed, and return its path here.

        Raises:
            FileNotFoundError: the path does not exist.
        """

    @abstractmethod
    def cancel(self, handle: JobHandle) -> None:
        """End the job now and keep its finished epochs."""

    def stop_trial(self, number: int) -> None:
        """Let the job that trains a trial end it after its present epoch; if it waits, after its first.

        Raises:
            ServiceError: the service can only cancel whole jobs, as one does that does not implement this.
        """
        raise ServiceError(f"training_service: {type(self).__name__} can't stop trial {number} without its whole job")

    @abstractmethod
    def list(self) -> Sequence[JobHandle]:
        """Return the jobs of this root that are pending or running."""

    @abstractmethod
    def slots(self) -> Sequence[str]:
        """Return the names of the slots, each of which runs one job at a time."""

    @abstractmethod
    def cleanup(self) -> None:
        """End everything the service runs for this root."""
