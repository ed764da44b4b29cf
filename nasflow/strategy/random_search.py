"""Random search."""

import random
from collections.abc import Callable

from nasflow.space.architecture import Architecture
from nasflow.strategy.random_base import NoveltyStrategy


class RandomSearch(NoveltyStrategy):
    """Samples uniformly at every choice."""

    def _drawer(self, rng: random.Random) -> Callable[[], Architecture]:
        return lambda: self.space.sample(rng)
