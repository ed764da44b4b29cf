"""What the local service and its workers know of each other: files below the root, changed under one file lock.

::

    <root>/local.lock                     held while anything below changes or must be read as one
    <root>/local/queue/<n>.<job_id>       jobs that wait, in order
                 workers/<slot>/worker.json   the worker of the slot
                                claim/<job_id>    the job it took: the queue's file, renamed
                                ready             it has started up
                                retired           it ends itself after this job
                 logs/<slot>.log          what the worker itself says
    <root>/jobs/<job_id>/cancel           the worker shall end the job
                         exit.json        the JobState of a finished job

A process killed between any two steps leaves a state that the next holder of the lock can go on from: a claim is one
rename, an outcome is written before its claim is dropped. Where the disk is full, what writes waits for room, and with
it, for it holds the lock, everyone else.
"""

import fcntl
import logging
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Concatenate, ParamSpec

from pydantic import BaseModel, ConfigDict

from nasflow.process_id import ProcessId
from nasflow.training.room import is_full, wait_for_room
from nasflow.training.spec import JobSpec, job_dir
from nasflow.training_service.base import JobState, JobStatus

P = ParamSpec("P")

_LOG = logging.getLogger(__name__)

ROOT_VARIABLE, TOKEN_VARIABLE = "NASFLOW_LOCAL_ROOT", "NASFLOW_LOCAL_WORKER"
"""Environment variables of a worker by which it and all its offspring are found, whatever became of their parents."""


class Layout(BaseModel):
    """How the worker of a slot is started; one that was started otherwise does not fit."""

    model_config = ConfigDict(frozen=True)

    command: list[str]
    environment: dict[str, str]


class WorkerRecord(BaseModel):
    """A worker that was started. `token` is the value of TOKEN_VARIABLE in it and all its offspring."""

    model_config = ConfigDict(frozen=True)

    slot: str
    process: ProcessId
    token: str
    layout: Layout


def _waiting_for_room(
    write: Callable[Concatenate["LocalState", P], None],
) -> Callable[Concatenate["LocalState", P], None]:
    """The same method, which may be repeated, and is for as long as the disk is full."""

    @wraps(write)
    def waiting(state: "LocalState", /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            write(state, *args, **kwargs)
        except OSError as error:
            if not is_full(error):
                raise
            _LOG.warning("%s: jobs in %s wait for room", error, state.root)
            wait_for_room(lambda: write(state, *args, **kwargs))

    return waiting


class LocalState:
    """The files. Every method but `news` expects the caller to hold the lock, which a thread can't take twice."""

    def __init__(self, root: Path):
        self.root = root
        self.dir = root / "local"
        self._queue = self.dir / "queue"
        self._workers = self.dir / "workers"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep every other thread and process out. The system frees it when its holder dies."""
        with (self.root / "local.lock").open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.flock(file, fcntl.LOCK_UN)  # also for a copy of `file` in a process forked meanwhile

    # --- jobs ----------------------------------------------------------------------------------------------------

    @_waiting_for_room
    def enqueue(self, spec: JobSpec) -> None:
        """Put a job at the end of the queue, and forget how an earlier run of it ended."""
        folder = job_dir(self.root, spec.job_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_aside(folder / "job.json", spec.model_dump_json())
        for mark in ("exit.json", "cancel"):
            (folder / mark).unlink(missing_ok=True)
        self._queue.mkdir(parents=True, exist_ok=True)
        last = max((int(file.name.partition(".")[0]) for file in self._queue.iterdir()), default=0)
        (self._queue / f"{last + 1:09d}.{spec.job_id}").touch()

    def queued(self) -> dict[str, Path]:
        """The waiting jobs' ids, oldest first, and their files."""
        files = sorted(self._queue.iterdir()) if self._queue.is_dir() else []
        return {file.name.partition(".")[2]: file for file in files}

    @_waiting_for_room
    def settle(self, job_id: str, state: JobState) -> None:
        """Record how a job ended, unless that is on record; a job whose cancellation was asked for was not lost."""
        file = job_dir(self.root, job_id) / "exit.json"
        if state.status is JobStatus.LOST and self.cancel_mark(job_id).exists():
            state = state.model_copy(update={"status": JobStatus.CANCELLED})
        if not file.exists():
            write_aside(file, state.model_dump_json())

    def outcome(self, job_id: str) -> JobState | None:
        """How a job ended, None if that is not on record."""
        try:
            return JobState.model_validate_json((job_dir(self.root, job_id) / "exit.json").read_bytes())
        except FileNotFoundError:
            return None

    def cancel_mark(self, job_id: str) -> Path:
        """The file that asks for a job's end."""
        return job_dir(self.root, job_id) / "cancel"

    # --- workers -------------------------------------------------------------------------------------------------

    @_waiting_for_room
    def register(self, worker: WorkerRecord) -> None:
        """Record a worker, the only one of its slot."""
        self._queue.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._workers / worker.slot, ignore_errors=True)  # what a killed `register` or `dismiss` left
        self._claims(worker.slot).mkdir(parents=True)
        write_aside(self._workers / worker.slot / "worker.json", worker.model_dump_json())

    def workers(self) -> list[WorkerRecord]:
        """The recorded workers, dead ones among them."""
        files = sorted(self._workers.glob("*/worker.json"))
        return [WorkerRecord.model_validate_json(file.read_bytes()) for file in files]

    def worker(self, slot: str) -> WorkerRecord | None:
        """The recorded worker of a slot."""
        file = self._workers / slot / "worker.json"
        return WorkerRecord.model_validate_json(file.read_bytes()) if file.exists() else None

    def dismiss(self, slot: str) -> None:
        """Forget the worker of a slot and its claims."""
        shutil.rmtree(self._workers / slot)

    def retire(self, slot: str) -> Path:
        """The mark by which a worker takes no more jobs."""
        return self._workers / slot / "retired"

    def log(self, slot: str) -> Path:
        """What the worker of a slot itself says."""
        return self.dir / "logs" / f"{slot}.log"

    def ready(self, slot: str) -> Path:
        """The mark by which a worker says that it has started up."""
        return self._workers / slot / "ready"

    def claim(self, slot: str) -> str | None:
        """Give the oldest waiting job to the worker of a slot."""
        for job_id, file in self.queued().items():
            file.rename(self._claims(slot) / job_id)
            return job_id
        return None

    def claimed(self, slot: str) -> list[str]:
        """The job that the worker of a slot took, if any."""
        folder = self._claims(slot)
        return sorted(file.name for file in folder.iterdir()) if folder.is_dir() else []

    def drop_claim(self, slot: str, job_id: str) -> None:
        """The worker of a slot is done with a job whose outcome is on record."""
        (self._claims(slot) / job_id).unlink()

    def news(self, slot: str) -> bool:
        """Without the lock: whether there may be something to do for the worker of a slot."""
        try:
            return any(self._queue.iterdir()) or self.retire(slot).exists() or not self._claims(slot).exists()
        except FileNotFoundError:
            return True

    def _claims(self, slot: str) -> Path:
        return self._workers / slot / "claim"


def write_aside(path: Path, text: str) -> None:
    """Write a file that is either there as a whole or not at all."""
    aside = path.with_name(path.name + ".new")
    aside.write_text(text)
    aside.replace(path)
