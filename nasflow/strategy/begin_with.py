"""Strategies that propose given architectures (the config's `begin_with`) before their own."""

from abc import abstractmethod
from collections.abc import Iterable, Sequence

from nasflow.space.architecture import Architecture
from nasflow.strategy.base import Strategy, as_proposals
from nasflow.trial import Trial


class GivenFirst(Strategy):
    """Base of strategies that number their trials and propose given architectures before their own.

    Args:
        first: the given architectures. Those that are on record are not proposed again.
    """

    def __init__(self, first: Sequence[Architecture]):
        self._waiting = list(dict.fromkeys(first))  # those that are still to be proposed
        self._next_number = 0

    @abstractmethod
    def _propose(self, count: int) -> list[Architecture]:
        """Up to `count` architectures, after the given ones."""

    def ask(self, count: int) -> list[Architecture]:
        """See `Strategy.ask`."""
        given, self._waiting = self._waiting[:count], self._waiting[count:]
        self._next_number += len(given)
        return given + self._propose(count - len(given))

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`."""
        self._count(trials)

    def proposed(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.proposed`."""
        self._count(trials)

    def _count(self, trials: Sequence[Trial]) -> None:
        self._next_number = max([self._next_number, *(trial.number + 1 for trial in trials)])
        if self._waiting:
            on_record = {trial.architecture for trial in trials}
            self._waiting = [one for one in self._waiting if one not in on_record]


class BeginWith(GivenFirst):
    """Proposes given architectures first, then those of another strategy, which learns from all trials.

    Args:
        first: the given architectures.
        strategy: a user's own; its `tell` must accept trials that it did not propose.
    """

    def __init__(self, first: Sequence[Architecture], strategy: Strategy):
        super().__init__(first)
        self._strategy = strategy

    def _propose(self, count: int) -> list[Architecture]:
        return as_proposals(self._strategy.ask(count), count)

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`."""
        super().tell(trials)
        self._strategy.tell(trials)

    def proposed(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.proposed`."""
        ordered = sorted(trials, key=lambda trial: trial.number)
        given = 0
        for trial, architecture in zip(ordered, self._waiting, strict=False):
            if trial.architecture != architecture:
                break
            given += 1
        super().proposed(trials)
        self._strategy.proposed(ordered[given:])

    def resume(self, rounds: Iterable[Sequence[Trial]]) -> None:
        """See `Strategy.resume`."""
        rounds = list(rounds)
        for trials in rounds:
            self._count(trials)
        self._strategy.resume(rounds)

    @property
    def asks_ahead(self) -> bool:
        """See `Strategy.asks_ahead`."""
        return self._strategy.asks_ahead
