"""Which trials improved on those before, and how many rounds ago the last one did."""

import threading
from collections.abc import Iterable, Sequence

from nasflow.config.search import Objective
from nasflow.trial import Trial


class Gains:
    """Keeps the best of a study's scored trials as they come in. Threads may share it.

    A trial is a gain if no trial before it was at least as good in every objective: with one objective a new best, with
    several a new point of the Pareto front. Replays do not count.

    Args:
        objectives: of the study.
        trials: those already recorded, in any order; `Study.front` is enough.
    """

    def __init__(self, objectives: Sequence[Objective], trials: Iterable[Trial] = ()):
        self._objectives = objectives
        self._front: list[tuple[float, ...]] = []  # losses by objective
        self._last = -1  # last round with a gain
        self._lock = threading.Lock()
        rounds: dict[int, list[Trial]] = {}
        for trial in trials:
            rounds.setdefault(trial.round, []).append(trial)
        for number in sorted(rounds):
            self.take(rounds[number])

    def take(self, trials: Iterable[Trial]) -> list[Trial]:
        """Return the gains among trials that came in together, best in the first objective first."""
        scored = [trial for trial in trials if trial.status.scored and trial.replayed_from is None]
        points = sorted((tuple(o.to_loss(t.metrics[o.metric]) for o in self._objectives), t.number) for t in scored)
        by_number = {trial.number: trial for trial in scored}
        gains = []
        with self._lock:
            for point, number in points:  # in this order no point is dominated by a later one
                if not any(_covers(other, point) for other in self._front):
                    self._front = [other for other in self._front if not _covers(point, other)] + [point]
                    gains.append(by_number[number])
            self._last = max([self._last, *(trial.round for trial in gains)])
        return gains

    def rounds_without(self, number: int) -> int:
        """Return how many rounds up to `number`, which has ended, had no gain since the last one that did."""
        with self._lock:
            return max(0, number - self._last)


def _covers(point: tuple[float, ...], other: tuple[float, ...]) -> bool:
    """Whether `point` is at least as good as `other` in every objective."""
    return all(one <= two for one, two in zip(point, other, strict=True))
