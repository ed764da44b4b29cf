"""A strategy that proposes given architectures, for a search with known candidates."""

from collections.abc import Mapping, Sequence
from typing import Any

from nasflow.space.architecture import Architecture
from nasflow.strategy.base import Strategy
from nasflow.trial import Trial


class Listed(Strategy):
    """Proposes `architectures` in their order, once."""

    def __init__(self, space: object, objectives: object, seed: int, architectures: Sequence[Mapping[str, Any]]):
        self._left = [Architecture(values) for values in architectures]

    def ask(self, count: int) -> list[Architecture]:
        """See `Strategy.ask`."""
        asked, self._left = self._left[:count], self._left[count:]
        return asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`. Architectures of a recorded round are not proposed again."""
        tried = {trial.architecture for trial in trials}
        self._left = [architecture for architecture in self._left if architecture not in tried]
