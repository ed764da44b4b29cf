"""A cluster without processes: its jobs only take their time, and end with a result that follows from the trial."""

import heapq
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from nasflow.job.events import Ended, Epoch, Final, Started
from nasflow.job.spec import JobSpec
from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture
from nasflow.space.pick import Pick
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.files.shared_root import RootHere

SHORTEST = 100  # parameters of the model that trains for the shortest time
_NOISE = 0.1  # how far a length may be from what the number of parameters says


def build(pick: Pick, spread: int) -> nn.Module:
    """Return a model whose number of parameters, up to `spread` times that of the smallest, says how long it trains."""
    pick.int("seed", 0, 10**9)  # so that no architecture is repeated
    return nn.Linear(pick.int("work", SHORTEST, SHORTEST * spread, log=True), 1, bias=False)


def train(report: Any) -> None:
    """Take no part: the cluster trains nothing."""


def score(architecture: Architecture) -> float:
    """Return the result of an architecture, in 0..1."""
    return derive_seed("score", architecture.to_json()) % 10_000 / 10_000


@dataclass(frozen=True)
class Bar:
    """A job in a slot; times in seconds of `time.monotonic`."""

    slot: int
    round: int
    begin: float
    end: float


class SimulatedCluster(RootHere):
    """Slots that each take the oldest waiting job as soon as they are free.

    Args:
        root: as of any service.
        slots: how many.
        seconds: the length of the shortest job.

    Attributes:
        bars: what the slots did, of jobs that have begun.
    """

    def __init__(self, root: Path, slots: int, seconds: float):
        super().__init__(root)
        self.bars: list[Bar] = []
        self._seconds = seconds
        self._free = [(0.0, slot) for slot in range(slots)]  # since when
        self._waiting: deque[tuple[float, JobSpec]] = deque()
        self._known: dict[str, tuple[JobSpec, float | None]] = {}  # the job's end, once it has begun
        self._lock = threading.Lock()

    def prepare(self) -> None:
        self._root.mkdir(parents=True, exist_ok=True)

    def submit(self, spec: JobSpec) -> JobHandle:
        with self._lock:
            if spec.job_id not in self._known:
                self._known[spec.job_id] = spec, None
                self._waiting.append((time.monotonic(), spec))
                self._advance()
        return JobHandle(service="simulated", job_id=spec.job_id)

    def status(self, handle: JobHandle) -> JobState:
        with self._lock:
            self._advance()
            spec, end = self._known.get(handle.job_id, (None, None))
            if spec is None:
                return JobState(status=JobStatus.LOST, reason="the cluster was started anew")
            if end is None:
                return JobState(status=JobStatus.PENDING)
            ended = end <= time.monotonic()
            return JobState(status=JobStatus.EXITED, exit_code=0) if ended else JobState(status=JobStatus.RUNNING)

    def events(self, handle: JobHandle, offset: int = 0) -> tuple[list[str], int]:
        spec, end = self._known[handle.job_id]
        if end is None or end > time.monotonic():
            return [], offset
        (member,) = spec.members
        metrics = {"value": score(Architecture(member.architecture))}
        told = [
            Started(resumed={member.trial: 0}),
            Epoch(trial=member.trial, epoch=1, metrics=dict(metrics)),
            Final(trial=member.trial, epochs=1, metrics=metrics),
            Ended(),
        ]
        return [event.model_dump_json() for event in told[offset:]], len(told)

    def cancel(self, handle: JobHandle) -> None:
        raise NotImplementedError("no job of the benchmark is cancelled")

    def list(self) -> Sequence[JobHandle]:
        return []

    def slots(self) -> Sequence[str]:
        return [f"slot {slot}" for slot in range(len(self._free))]

    def cleanup(self) -> None:
        with self._lock:
            self._waiting.clear()

    def _advance(self) -> None:
        """Give waiting jobs to slots that have become free since the last call, each at the moment when it did."""
        now = time.monotonic()
        while self._waiting and self._free[0][0] <= now:
            submitted, spec = self._waiting.popleft()
            free, slot = self._free[0]
            begin = max(free, submitted)
            end = begin + self._length(spec)
            heapq.heapreplace(self._free, (end, slot))
            self._known[spec.job_id] = spec, end
            self.bars.append(Bar(slot, int(spec.job_id[1:4]), begin, end))

    def _length(self, spec: JobSpec) -> float:
        architecture = Architecture(spec.members[0].architecture)
        noise = 1 + _NOISE * (2 * (derive_seed("length", architecture.to_json()) % 1000) / 1000 - 1)
        return self._seconds * noise * float(architecture["work"]) / SHORTEST
