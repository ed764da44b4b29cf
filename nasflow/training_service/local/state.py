"""What the local service and its workers know of each other, beside what `job_records` says of the jobs.

::

    <root>/local/workers/<slot>/worker.json   the worker of the slot
                                claim/<job_id>    the job it took
                                ready             it has started up
                                retired           it ends itself after this job
                 held/<slot>              why the slot takes no new job for now
                 controller               changed whenever a controller is heard of
                 logs/<slot>.log          what the worker itself says
"""

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from nasflow.process_id import ProcessId
from nasflow.training_service.files.file_queue import JobRecords, waiting_for_room, write_aside

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


class LocalState(JobRecords):
    """The files. Every method but `news` expects the caller to hold the lock, which a thread can't take twice."""

    def __init__(self, root: Path):
        super().__init__(root, "local")
        self._held = self.dir / "held"

    @waiting_for_room
    def register(self, worker: WorkerRecord) -> None:
        """Record a worker, the only one of its slot."""
        self._queue.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._workers / worker.slot, ignore_errors=True)  # what a killed `register` or `dismiss` left
        self.claims(worker.slot).mkdir(parents=True)
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

    def claim(self, holder: str) -> str | None:
        """Give the oldest waiting job to a slot that is not held."""
        return None if (self._held / holder).exists() else super().claim(holder)

    @waiting_for_room
    def hold(self, slot: str, reason: str) -> None:
        """Let a slot take no new job or, without a reason, let it take some again. Its present job goes on."""
        if reason:
            self._held.mkdir(parents=True, exist_ok=True)
            write_aside(self._held / slot, reason)
        else:
            (self._held / slot).unlink(missing_ok=True)

    def held(self) -> dict[str, str]:
        """The slots that take no new job, and why."""
        return {file.name: file.read_text() for file in self._held.glob("*") if file.suffix != ".new"}

    def release(self) -> None:
        """Let every slot take jobs."""
        shutil.rmtree(self._held, ignore_errors=True)

    def log(self, slot: str) -> Path:
        """What the worker of a slot itself says."""
        return self.dir / "logs" / f"{slot}.log"

    def ready(self, slot: str) -> Path:
        """The mark by which a worker says that it has started up."""
        return self._workers / slot / "ready"

    @property
    def controller(self) -> Path:
        """The file that every call of a controller changes (its time of modification), at most once a second."""
        return self.dir / "controller"

    def news(self, slot: str) -> bool:
        """Without the lock: whether there may be something to do for the worker of a slot."""
        try:
            work = any(self._queue.iterdir()) and not (self._held / slot).exists()
            return work or self.retire(slot).exists() or not self.claims(slot).exists()
        except FileNotFoundError:
            return True
