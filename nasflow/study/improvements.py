"""Which trials brought something new to a study, and how long ago the last one did."""

import threading
from collections.abc import Iterable, Sequence

from nasflow.config.search import Objective
from nasflow.trial import Trial


class Gains:
    """Knows the best of a study's scored trials as they come in. Threads may share it.

    A trial is a gain if no trial before it was at least as good in every objective: with one objective a new best, with
    several a new point of the Pareto front. Replays are none.

    Args:
        objectives: of the study.
        trials: that are on record already, in any order; those of `Study.front` say as much as all.
    """

    def __init__(self, objectives: Sequence[Objective], trials: Iterable[Trial] = ()):
        self._objectives = objectives
        self._front: list[tuple[float, ...]] = []  # losses by objective
        self._last = -1  # round that had one
        self._lock = threading.Lock()
        rounds: dict[int, list[Trial]] = {}
        for trial in trials:
            rounds.setdefault(trial.round, []).append(trial)
        for number in sorted(rounds):
            self.take(rounds[number])

    def take(self, trials: Iterable[Trial]) -> list[Trial]:
        """The gains among trials that came in together, best in the first objective first; others are passed over."""
        scored = [trial for trial in trials if trial.status.scored and trial.replayed_from is None]
        points = sorted((tuple(o.to_loss(t.metrics[o.metric]) for o in self._objectives), t.number) for t in scored)
        by_number = {trial.number: trial for trial in scored}
        gains = []
        with self._lock:
            for point, number in points:  # in this order none is dominated by one behind it
                if not any(_covers(other, point) for other in self._front):
                    self._front = [other for other in self._front if not _covers(point, other)] + [point]
                    gains.append(by_number[number])
            self._last = max([self._last, *(trial.round for trial in gains)])
        return gains

    def rounds_without(self, number: int) -> int:
        """How many rounds up to `number`, which has ended, brought nothing since the last that did."""
        with self._lock:
            return max(0, number - self._last)


def _covers(point: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """`point` is at least as good as `other` in everything."""
    return all(one <= two for one, two in zip(point, other, strict=True))
