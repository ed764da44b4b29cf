"""The same searches in virtual time: the controller's own queue of jobs, and a model of everything else."""

import heapq
import itertools
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.slots.cluster import Bar
from nasflow.flows.session.job_queue import JobQueue


@dataclass(frozen=True)
class Model:
    """What is simulated; times in seconds.

    Attributes:
        slots: of the cluster.
        spread: how many times as long as the shortest the longest trial may take; lengths are log-uniform.
        ahead: `budget.rounds_ahead`.
        rounds: of the search.
        per_slot: trials of a round for each slot.
        seconds: mean length of a trial.
        failing: share of the trials that fail half way, and succeed when they are retried alone.
        round_seconds: until a round that may begin has submitted its jobs, or a round whose trials ended has its end on
            record.
        job_seconds: until the controller knows that a job has ended.
        noise: how far a length may be from what is expected of it.
        plain: as before there were rounds ahead: jobs in the order of proposals, retries after all other jobs.
    """

    slots: int
    spread: int
    ahead: int = 0
    rounds: int = 8
    per_slot: int = 2
    seconds: float = 60.0
    failing: float = 0.03
    round_seconds: float = 2.0
    job_seconds: float = 0.2
    noise: float = 0.1
    plain: bool = False


class VirtualSearch:
    """A search in virtual time.

    Attributes:
        bars: what the slots did.
    """

    def __init__(self, model: Model, seed: int = 0):
        self.bars: list[Bar] = []
        self._model = model
        self._rng = random.Random(seed)
        self._queue = JobQueue()
        self._queue.slots = model.slots
        self._waiting: deque[int] = deque()  # in the service
        self._free = list(range(model.slots))
        self._costs: list[float] = []  # expected length by trial
        self._rounds: list[int] = []  # round by trial
        self._retried: set[int] = set()
        self._late: dict[int, list[int]] = {}  # retries that wait for the end of a round's other jobs
        self._left: dict[int, int] = {}  # unfinished jobs of each round that runs
        self._next = 0  # round to begin
        self._beginning = False
        self._time = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()

    def run(self) -> Sequence[Bar]:
        """Run to the end and return what the slots did."""
        self._begin_rounds()
        while self._events:
            self._time, _, happen = heapq.heappop(self._events)
            happen()
        return self.bars

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        heapq.heappush(self._events, (self._time + seconds, next(self._count), happen))

    def _begin_rounds(self) -> None:
        model = self._model
        oldest = min(self._left, default=self._next)
        if self._beginning or self._next == model.rounds or self._next - 1 - model.ahead >= oldest:
            return
        self._beginning, number = True, self._next
        self._left[number] = model.slots * model.per_slot
        self._next += 1
        self._after(model.round_seconds, lambda: self._plan(number))

    def _plan(self, number: int) -> None:
        shortest = 1.0 if self._model.spread == 1 else math.log(self._model.spread) / (self._model.spread - 1)
        for _ in range(self._left[number]):
            trial = len(self._costs)
            self._costs.append(self._model.seconds * shortest * self._model.spread ** self._rng.random())
            self._rounds.append(number)
            self._expect(trial)
        self._beginning = False
        self._give()
        self._begin_rounds()

    def _expect(self, trial: int) -> None:
        self._queue.expect(self._rounds[trial], 0.0 if self._model.plain else self._costs[trial], trial)

    def _give(self) -> None:
        while (trial := self._queue.next(min(self._left, default=None))) is not None:
            self._queue.forget(trial)
            self._queue.begin(trial)
            self._waiting.append(trial)
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self._free:
            trial, slot = self._waiting.popleft(), self._free.pop()
            fails = trial not in self._retried and self._rng.random() < self._model.failing
            length = self._costs[trial] * self._rng.uniform(1 - self._model.noise, 1 + self._model.noise)
            end = self._time + length * (0.5 if fails else 1.0)
            self.bars.append(Bar(slot, self._rounds[trial], self._time, end))
            self._after(end - self._time, lambda slot=slot: self._end(slot))  # type: ignore[misc]
            known = end - self._time + self._model.job_seconds
            self._after(known, lambda trial=trial, fails=fails: self._learn(trial, fails))  # type: ignore[misc]

    def _end(self, slot: int) -> None:
        self._free.append(slot)
        self._fill()

    def _learn(self, trial: int, failed: bool) -> None:
        number = self._rounds[trial]
        self._queue.end(trial)
        self._left[number] -= not failed
        if failed:
            self._retried.add(trial)
            self._late.setdefault(number, []).append(trial)
        late = self._late.get(number, [])
        if late and (not self._model.plain or self._left[number] == len(late)):
            for retry in late:
                self._expect(retry)
            self._late[number] = []
        self._give()
        self._end_rounds()

    def _end_rounds(self) -> None:
        oldest = min(self._left, default=None)
        if oldest is not None and self._left[oldest] == 0:
            self._left[oldest] = -1  # its end is being recorded
            self._after(self._model.round_seconds, lambda: self._over(oldest))

    def _over(self, number: int) -> None:
        del self._left[number]
        self._give()
        self._begin_rounds()
        self._end_rounds()
