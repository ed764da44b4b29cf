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
        float_steps: how many values a float domain is cut into.
    """

    def __init__(self, space: Space, float_steps: int):
        self._space = space
        self._float_steps = float_steps
        self._last: Architecture | None = None
        self._walk: Iterator[Architecture] | None = None

    def ask(self, count: int) -> list[Architecture]:
        """See `Strategy.ask`."""
        if self._walk is None:
            self._walk = self._space.enumerate(self._float_steps, after=self._last)
        return list(islice(self._walk, count))

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`. Results teach it nothing; where the record ends is where it goes on."""
        if self._walk is None and trials:
            self._last = max(trials, key=lambda trial: trial.number).architecture
