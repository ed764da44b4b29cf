"""State shared by the local service and its workers, in addition to the job queue (`files/file_queue.py`).

::

    <root>/local/workers/<slot>/worker.json   the record of the slot's worker
                                claim/<job_id>    the job it took
                                ready             it has started up
                                retired           it exits after this job
                                hangs             why its slot takes no job: a process that nothing can end
                 held/<slot>              why the slot takes no new job for now
                 logs/<slot>.log          the worker's own output
"""

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from nasflow.system.process_id import ProcessId
from nasflow.system.small_files import write_aside
from nasflow.training_service.files.file_queue import WAITING, JobRecords, waiting_for_room

ROOT_VARIABLE, TOKEN_VARIABLE = "NASFLOW_LOCAL_ROOT", "NASFLOW_LOCAL_WORKER"
"""Environment variables by which a worker and all its descendants are found, even if their parents have ended."""


class Layout(BaseModel):
    """How the worker of a slot is started. A worker that was started with another layout is replaced.

    Attributes:
        secrets: names of what it is given of the controller's secrets, never their text.
    """

    model_config = ConfigDict(frozen=True)

    command: list[str]
    environment: dict[str, str]
    secrets: list[str] = []


class WorkerRecord(BaseModel):
    """A worker that was started.

    `token` is the value of TOKEN_VARIABLE in it and all its descendants; empty if its record is damaged.
    """

    model_config = ConfigDict(frozen=True)

    slot: str
    process: ProcessId
    token: str
    layout: Layout


class LocalState(JobRecords):
    """The files of the local service. Callers of every method but `news` must hold the lock, which is not reentrant."""

    def __init__(self, root: Path):
        super().__init__(root, "local")
        self._held = self.dir / "held"

    @waiting_for_room
    def register(self, worker: WorkerRecord) -> None:
        """Record a worker, the only one of its slot."""
        self._queue.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(self._workers / worker.slot, ignore_errors=True)  # left by a killed `register` or `dismiss`
        self.claims(worker.slot).mkdir(parents=True)
        write_aside(self._workers / worker.slot / "worker.json", worker.model_dump_json())

    def workers(self) -> list[WorkerRecord]:
        """Return the recorded workers, including dead ones."""
        slots = sorted(file.parent.name for file in self._workers.glob("*/worker.json"))
        return [worker for slot in slots if (worker := self.worker(slot)) is not None]

    def worker(self, slot: str) -> WorkerRecord | None:
        """Return the recorded worker of a slot, if any. One with a damaged record counts as dead."""
        try:
            return WorkerRecord.model_validate_json((self._workers / slot / "worker.json").read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError:
            nobody = ProcessId(pid=0, started="unknown")
            return WorkerRecord(slot=slot, process=nobody, token="", layout=Layout(command=[], environment={}))

    def dismiss(self, slot: str) -> None:
        """Remove the record of a slot's worker and its claims."""
        shutil.rmtree(self._workers / slot)

    def retire(self, slot: str) -> Path:
        """Return the mark that keeps a worker from taking more jobs."""
        return self._workers / slot / "retired"

    def claim(self, holder: str) -> str | None:
        """Give the oldest waiting job to a slot that is not held."""
        return None if (self._held / holder).exists() else super().claim(holder)

    @waiting_for_room
    def hold(self, slot: str, reason: str) -> None:
        """Keep a slot from taking new jobs; with an empty reason, let it take them again. Its current job continues."""
        if reason:
            self._held.mkdir(parents=True, exist_ok=True)
            write_aside(self._held / slot, reason)
        else:
            (self._held / slot).unlink(missing_ok=True)

    @waiting_for_room
    def hang(self, slot: str, reason: str) -> None:
        """Keep a slot from taking new jobs until the record of its worker is removed, which can't be ended now."""
        write_aside(self._workers / slot / "hangs", reason)

    def hangs(self, slot: str) -> bool:
        """Whether `hang` was called for the worker of a slot."""
        return (self._workers / slot / "hangs").exists()

    def held(self) -> dict[str, str]:
        """Return the slots that take no new job, and why."""
        files = [file for file in self._held.glob("*") if file.suffix != ".new" and not file.name.startswith(".")]
        hung = {file.parent.name: file.read_text(errors="replace") for file in self._workers.glob("*/hangs")}
        return {file.name: file.read_text(errors="replace") for file in files} | hung

    def release(self) -> None:
        """Let every slot take jobs."""
        shutil.rmtree(self._held, ignore_errors=True)

    def log(self, slot: str) -> Path:
        """Return the log of a slot's worker."""
        return self.dir / "logs" / f"{slot}.log"

    def ready(self, slot: str) -> Path:
        """Return the mark that a worker sets when it has started up."""
        return self._workers / slot / "ready"

    def news(self, slot: str) -> bool:
        """Whether there may be work for a slot's worker. Needs no lock."""
        try:
            work = (
                any(WAITING.fullmatch(file.name) for file in self._queue.iterdir()) and not (self._held / slot).exists()
            )
            return work or self.retire(slot).exists() or not self.claims(slot).exists()
        except FileNotFoundError:
            return True
