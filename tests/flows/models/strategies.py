"""A user's strategy for the tests of the flows."""

from nasflow.space.architecture import Architecture
from nasflow.strategy.base import Strategy


class Stubborn(Strategy):
    """Proposes the same two architectures over and over."""

    def __init__(self, space, objectives, seed):
        self.proposals = [Architecture({"kind": "ok", "width": width}) for width in (8, 12)]

    def ask(self, count):
        return [self.proposals[index % 2] for index in range(count)]

    def tell(self, trials):
        pass


class Refusing(Stubborn):
    """Can't learn."""

    def tell(self, trials):
        raise RuntimeError(f"trial {trials[0].number} is refused")
