"""Grid search: every architecture in turn."""

from collections.abc import Iterator, Sequence
from itertools import islice

from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.begin_with import GivenFirst
from nasflow.trial import Trial


class GridSearch(GivenFirst):
    """Proposes every architecture once, in the space's order. A resumed search goes on after the last one on record.

    Args:
        space: what is searched.
        float_steps: how many values of a float domain are tried.
        first: the proposals of the first trials, which are left out of the order.
    """

    def __init__(self, space: Space, float_steps: int, first: Sequence[Architecture] = ()):
        super().__init__(first)
        self._space = space
        self._float_steps = float_steps
        self._last: tuple[int, Architecture] | None = None  # number of the trial, what it tried
        self._walk: Iterator[Architecture] | None = None

    def _propose(self, count: int) -> list[Architecture]:
        if count and self._walk is None:
            known = set(self._first)
            walk = self._space.enumerate(self._float_steps, after=self._last[1] if self._last else None)
            self._walk = (architecture for architecture in walk if architecture not in known)
        return list(islice(self._walk or (), count))

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`. Results change nothing; the search goes on where the record ends."""
        super().tell(trials)
        self._go_on_after(trials)

    def proposed(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.proposed`."""
        super().proposed(trials)
        self._go_on_after(trials)

    def _go_on_after(self, trials: Sequence[Trial]) -> None:
        for trial in sorted(trials, key=lambda trial: trial.number):
            if trial.number >= len(self._first) and (self._last is None or trial.number > self._last[0]):
                self._last = trial.number, trial.architecture
