"""Implements `use_active_gpu: false`: a slot takes no new job while processes of others compute on its GPU."""

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from contextvars import copy_context

import psutil

from nasflow.errors import ServiceError
from nasflow.training_service.local.state import LocalState
from nasflow.training_service.machine.gpus import Gpu, read_gpus

_LOG = logging.getLogger(__name__)

_EVERY = 2.0  # seconds between two readings
_OLD = 10.0  # seconds after which a reading is out of date


class ActiveGpus:
    """Holds the slots of GPUs that others use, or that are not known to be free of others (`LocalState.hold`).

    GPUs are read in a thread, because that can take seconds and must block neither callers nor workers. Slots are held
    until the first reading, and again whenever the last reading is too old.

    Args:
        slots: the slots of each GPU.
    """

    def __init__(self, state: LocalState, slots: Mapping[int, Sequence[str]]):
        self._state, self._slots = state, slots
        self._read_at: float | None = None  # None again when that is too long ago
        self._reading: threading.Thread | None = None
        self._reported: dict[int, str] = {}

    def look(self) -> None:
        """Start a reading of the GPUs if one is due. The service calls this often, and holds the lock."""
        age = float("inf") if self._read_at is None else time.monotonic() - self._read_at
        if age > _OLD:
            self._read_at, held = None, self._state.held()
            for gpu, slots in self._slots.items():
                for slot in set(slots) - set(held):
                    self._state.hold(slot, f"GPU {gpu} is being checked")
        if age > _EVERY and not (self._reading and self._reading.is_alive()):
            run = copy_context().run  # its warnings go to the log of its search
            self._reading = threading.Thread(target=run, args=(self._read,), name="active GPUs", daemon=True)
            self._reading.start()

    def rest(self) -> None:
        """Wait for a reading in progress. The caller must not hold the lock."""
        if self._reading:
            self._reading.join()

    def _read(self) -> None:
        began_with = self._at_work()
        try:
            gpus = {gpu.index: gpu for gpu in read_gpus()}
        except ServiceError as error:
            reasons = dict.fromkeys(self._slots, str(error))
        else:
            at_work = began_with | self._at_work()  # jobs that began or ended meanwhile are ours too
            workers = self._workers()
            reasons = {index: self._reason(index, gpus.get(index), index in at_work, workers) for index in self._slots}
        with self._state.lock():
            if self._state.dir.exists():  # else the service was cleaned up
                for slot, why in self._of_slots(reasons).items():
                    self._state.hold(slot, "; ".join(why))
            self._read_at = time.monotonic()
        self._tell(reasons)

    def _of_slots(self, reasons: Mapping[int, str]) -> dict[str, list[str]]:
        """Return why each slot may take no job, by the reasons of its GPUs, each once; none for one that may."""
        found: dict[str, list[str]] = {slot: [] for slots in self._slots.values() for slot in slots}
        for index, reason in reasons.items():
            for why in (found[slot] for slot in self._slots[index]):
                if reason and reason not in why:
                    why.append(reason)
        return found

    def _at_work(self) -> set[int]:
        """Return the GPUs with a job in one of their slots."""
        with self._state.lock():
            return {gpu for gpu, slots in self._slots.items() if any(self._state.claimed(slot) for slot in slots)}

    def _workers(self) -> set[int]:
        with self._state.lock():
            return {worker.process.pid for worker in self._state.workers()}

    def _reason(self, index: int, gpu: Gpu | None, at_work: bool, workers: set[int]) -> str:
        """Return why no job may start on a GPU; empty if one may."""
        if gpu is None:
            return f"GPU {index} is no longer there"
        verdicts = {pid: _below(workers, pid) for pid in gpu.pids}
        # A pid unknown here belongs to an outer pid namespace, in which our own jobs have such pids too.
        others = [str(pid or "unknown") for pid, ours in verdicts.items() if not (at_work if ours is None else ours)]
        return f"GPU {index} is in use by others (process {', '.join(others)})" if others else ""

    def _tell(self, reasons: Mapping[int, str]) -> None:
        """Log each change once."""
        for reason in dict.fromkeys(reasons.values()):
            if reason and reason not in self._reported.values():
                _LOG.warning("%s: no new job starts there until this changes", reason)
        for index in [index for index, reason in reasons.items() if self._reported.get(index) and not reason]:
            _LOG.info("GPU %d is no longer used by others", index)
        self._reported = dict(reasons)


def _below(workers: set[int], pid: int) -> bool | None:
    """Whether a process descends from a worker, which adopts its orphans; None if its pid is unknown here."""
    try:
        return not workers.isdisjoint({pid, *(parent.pid for parent in psutil.Process(pid).parents())})
    except psutil.NoSuchProcess:
        return None
