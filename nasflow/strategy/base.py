"""The contract of a strategy: which candidates to try next."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from nasflow.errors import ConfigError
from nasflow.space.architecture import Architecture
from nasflow.trial import Trial


class Strategy(ABC):
    """Proposes architectures (`ask`) and learns from finished trials (`tell`).

    The search calls `ask` once a round and then `tell` with all trials of that round, in the order of their numbers. A
    strategy keeps nothing on disk: after a restart it is created again with the same seed and `resume`d with the
    recorded rounds, and must then propose exactly what it would have proposed without the restart. So its randomness
    may depend on its seed and on past calls of `ask` and `tell`, never on time or on the process.

    With `budget.rounds_ahead` k it is asked for up to k more rounds before it is told of the first, always in the same
    order: round n after it was told of the rounds up to n - 1 - k. It has to implement `proposed` for that.
    """

    @abstractmethod
    def ask(self, count: int) -> list[Architecture]:
        """Return up to `count` architectures; fewer, or none, only when the space is exhausted."""

    @abstractmethod
    def tell(self, trials: Sequence[Trial]) -> None:
        """Learn from one round's finished trials, failed ones (which have no metrics) among them.

        Some trials may be ones that the strategy did not propose: the config's `begin_with`.
        """

    def proposed(self, trials: Sequence[Trial]) -> None:
        """Take over the trials of one round, without their results, as if `ask` had just returned them.

        A resumed search with `budget.rounds_ahead` calls it for each recorded round, with `tell` in between as before.
        """
        raise NotImplementedError

    @property
    def asks_ahead(self) -> bool:
        """Whether it can be asked for a round before it is told of the one before, that is, implements `proposed`."""
        return type(self).proposed is not Strategy.proposed

    def resume(self, rounds: Iterable[Sequence[Trial]]) -> None:
        """Resume a search from the finished trials of each earlier round, oldest first."""
        for trials in rounds:
            self.tell(trials)


def as_proposals(asked: object, count: int) -> list[Architecture]:
    """Return what a strategy's `ask` returned.

    Raises:
        ConfigError: it is not up to `count` architectures.
    """
    found = list(asked) if isinstance(asked, Iterable) else [asked]
    architectures = [one for one in found if isinstance(one, Architecture)]
    if len(architectures) == len(found) <= count:
        return architectures
    others = [one for one in found if not isinstance(one, Architecture)]
    what = f"a {type(others[0]).__name__}" if others else f"{len(found)} architectures"
    raise ConfigError(
        f"strategy.target: its `ask({count})` returned {what}; let it return a list of up to {count} objects of "
        "nasflow.space.architecture.Architecture"
    )
