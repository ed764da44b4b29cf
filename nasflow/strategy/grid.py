"""Grid search: every architecture in turn."""

from collections.abc import Iterator, Sequence
from itertools import islice

from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.trial import Trial


class GridSearch(Strategy):
    """Proposes every architecture once, in the space's order, and goes on behind the last one on record.

    Args:
        space: what is searched.
        float_steps: how many values a float domain is cut into.
        first: the proposals of the first trials, which are left out of the order.
    """

    def __init__(self, space: Space, float_steps: int, first: Sequence[Architecture] = ()):
        self._space = space
        self._float_steps = float_steps
        self._first = first
        self._next_number = 0
        self._last: Architecture | None = None
        self._walk: Iterator[Architecture] | None = None

    def ask(self, count: int) -> list[Architecture]:
        """See `Strategy.ask`."""
        first = list(self._first[self._next_number : self._next_number + count])
        self._next_number += len(first)
        if len(first) < count and self._walk is None:
            known = set(self._first)
            walk = self._space.enumerate(self._float_steps, after=self._last)
            self._walk = (architecture for architecture in walk if architecture not in known)
        return first + list(islice(self._walk or (), count - len(first)))

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`. Results teach it nothing; where the record ends is where it goes on."""
        for trial in sorted(trials, key=lambda trial: trial.number):
            self._next_number = max(self._next_number, trial.number + 1)
            if self._walk is None and trial.number >= len(self._first):
                self._last = trial.architecture
