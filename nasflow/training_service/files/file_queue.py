"""The job queue: waiting jobs, their holders and their outcomes, as files below a study's root under one file lock.

::

    <root>/<service>.lock                 held while anything below is changed or read consistently
    <root>/<service>/queue/<n>.<job_id>   waiting jobs, in order
                     workers/<holder>/claim/<job_id>    the job it took: the file from the queue, renamed
                     controller       its modification time is that of a controller's last call, to the second
    <root>/jobs/<job_id>/job.json         the JobSpec
                         cancel           asks its holder to end the job
                         exit.json        the JobState of a finished job

If a process is killed between any two steps, the next holder of the lock can continue from the files: a claim is one
rename, and an outcome is written before its claim is dropped. While the disk is full, a write waits for room, and so
does every other process, because the write holds the lock.
"""

import fcntl
import logging
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import BinaryIO, Concatenate, ParamSpec, TypeVar

from nasflow.errors import ServiceError
from nasflow.job.disk_full import is_full, wait_for_room
from nasflow.job.spec import JobSpec, job_dir
from nasflow.system.small_files import read_whole, write_aside
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.files.locking import acquire_soon, turn_of_thread

P = ParamSpec("P")
R = TypeVar("R", bound="JobRecords")

_LOG = logging.getLogger(__name__)

_CALLS_EVERY = 1.0  # seconds between two records of a controller's calls
# Any other name is a leftover: of a killed `write_aside`, or a network file system's `.nfs...` of a file in use.
_JOB = re.compile(r"[A-Za-z0-9-]+")
WAITING = re.compile(rf"(\d+)\.({_JOB.pattern})")
"""The name of a waiting job's file: its place in the queue and its id."""


def waiting_for_room(write: Callable[Concatenate[R, P], None]) -> Callable[Concatenate[R, P], None]:
    """Decorate a method, which must be safe to repeat, so that it is repeated while the disk is full."""

    @wraps(write)
    def waiting(records: R, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            write(records, *args, **kwargs)
        except OSError as error:
            if not is_full(error):
                raise
            _LOG.warning("%s: jobs in %s wait for disk space", error, records.root)
            wait_for_room(lambda: write(records, *args, **kwargs))

    return waiting


class JobRecords:
    """The files of the job queue. Callers of every method must hold the lock, which is not reentrant.

    Args:
        root: the study's folder.
        service: the name of the service.
    """

    def __init__(self, root: Path, service: str):
        self.root = root
        self.dir = root / service
        self._lock_file = root / f"{service}.lock"
        self._queue = self.dir / "queue"
        self._workers = self.dir / "workers"
        self._called = float("-inf")
        self._place = 0

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock against all threads and processes. The system frees it if its holder dies. Creates the root."""
        with self._locked(lambda file: fcntl.flock(file, fcntl.LOCK_EX)):
            yield

    @contextmanager
    def _locked(self, acquire: Callable[[BinaryIO], None]) -> Iterator[None]:
        self.root.mkdir(parents=True, exist_ok=True)
        with self._lock_file.open("ab") as file:
            acquire(file)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a forked process may have a copy

    @contextmanager
    def service_lock(self) -> Iterator[None]:
        """As `lock`, for a service's own calls.

        Raises:
            ServiceError: the disk is full, or another process keeps the lock.
        """
        try:
            with turn_of_thread(self._lock_file), self._locked(acquire_soon):
                yield
        except OSError as error:
            if not is_full(error):
                raise
            raise ServiceError(f"training_service: {error}: make room there and run the search again") from error

    @property
    def controller(self) -> Path:
        """The file that `note_call` modifies."""
        return self.dir / "controller"

    def note_call(self) -> None:
        """Record that a controller has called, at most once a second (`controller_calls` reads it)."""
        now = time.monotonic()
        if now - self._called > _CALLS_EVERY and self.dir.exists():
            self.controller.touch()
            self._called = now

    @waiting_for_room
    def enqueue(self, spec: JobSpec) -> None:
        """Put a job at the end of the queue and forget the outcome of an earlier run."""
        folder = job_dir(self.root, spec.job_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_aside(folder / "job.json", spec.model_dump_json())
        for mark in ("exit.json", "cancel"):
            (folder / mark).unlink(missing_ok=True)
        self._queue.mkdir(parents=True, exist_ok=True)
        self._place = max(time.time_ns(), self._place + 1)  # listing the queue for its last place takes its length
        (self._queue / f"{self._place:019d}.{spec.job_id}").touch()

    def queued(self) -> dict[str, Path]:
        """Return the ids of the waiting jobs, oldest first, and their files."""
        files = sorted(self._queue.iterdir()) if self._queue.is_dir() else []
        return {name[2]: file for file in files if (name := WAITING.fullmatch(file.name))}

    @waiting_for_room
    def settle(self, job_id: str, state: JobState) -> None:
        """Record how a job ended, unless that is on record. LOST becomes CANCELLED if a cancel was requested."""
        if state.status is JobStatus.LOST and self.cancel_mark(job_id).exists():
            state = state.model_copy(update={"status": JobStatus.CANCELLED})
        if self.outcome(job_id) is None:
            write_aside(job_dir(self.root, job_id) / "exit.json", state.model_dump_json())
        self.cancel_mark(job_id).unlink(missing_ok=True)

    def outcome(self, job_id: str) -> JobState | None:
        """Return how a job ended; None if that is not on record, or the record is damaged."""
        return read_whole(job_dir(self.root, job_id) / "exit.json", JobState.model_validate_json)

    def is_known(self, job_id: str) -> bool:
        """Whether a job was ever put into the queue."""
        return (job_dir(self.root, job_id) / "job.json").exists()

    def cancel_mark(self, job_id: str) -> Path:
        """Return the file that requests a job's end."""
        return job_dir(self.root, job_id) / "cancel"

    def claim(self, holder: str) -> str | None:
        """Give the oldest waiting job to a holder."""
        for job_id, file in self.queued().items():
            file.rename(self.claims(holder) / job_id)
            return job_id
        return None

    def claimed(self, holder: str) -> list[str]:
        """Return the jobs that a holder took."""
        folder = self.claims(holder)
        return sorted(file.name for file in folder.iterdir() if _JOB.fullmatch(file.name)) if folder.is_dir() else []

    def holders(self) -> list[str]:
        """Return those that have or had jobs."""
        return (
            sorted(folder.name for folder in self._workers.iterdir() if folder.is_dir())
            if self._workers.is_dir()
            else []
        )

    def drop_claim(self, holder: str, job_id: str) -> None:
        """Drop a holder's claim on a job after its outcome was recorded."""
        (self.claims(holder) / job_id).unlink()

    def claims(self, holder: str) -> Path:
        """Return the folder of the jobs that a holder took."""
        return self._workers / holder / "claim"
