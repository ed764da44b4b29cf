"""Given architectures before those of a strategy that knows nothing of them."""

from collections.abc import Sequence

from nasflow.space.architecture import Architecture
from nasflow.strategy.base import Strategy
from nasflow.trial import Trial


class BeginWith(Strategy):
    """Proposes given architectures first, then what another strategy proposes, which is told of all trials.

    Args:
        first: the proposals of the first trials.
        strategy: a user's own; it must take trials in `tell` that it did not propose.
    """

    def __init__(self, first: Sequence[Architecture], strategy: Strategy):
        self._first = first
        self._strategy = strategy
        self._next_number = 0

    def ask(self, count: int) -> list[Architecture]:
        """See `Strategy.ask`."""
        first = list(self._first[self._next_number : self._next_number + count])
        self._next_number += len(first)
        return first + self._strategy.ask(count - len(first))

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`."""
        self._next_number = max([self._next_number, *(trial.number + 1 for trial in trials)])
        self._strategy.tell(trials)
