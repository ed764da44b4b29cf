"""The base of strategies that draw each proposal at random: a seed for every trial, and no architecture twice."""

import random
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence

from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture
from nasflow.space.enumeration import EndlessDomain
from nasflow.space.space import Space
from nasflow.strategy.begin_with import GivenFirst
from nasflow.trial import Trial

_DRAWS = 20  # for a new architecture, before the space is enumerated for one


class NoveltyStrategy(GivenFirst):
    """Draws each trial's architecture with its own random numbers, so that a resumed search needs no replay.

    An architecture is proposed once while the space has others. When draws find nothing new, the first one in the
    order of enumeration that is new is proposed; when a finite space has none left, `ask` returns fewer. Only if the
    space is infinite (float domains) may one be proposed again.

    Args:
        space: what is searched.
        seed: of the draws.
        first: the given architectures.
    """

    def __init__(self, space: Space, seed: int, first: Sequence[Architecture] = ()):
        super().__init__(first)
        self.space = space
        self._seed = seed
        self._seen: set[Architecture] = set(first)
        self._walk: Iterator[Architecture] | None = None

    @abstractmethod
    def _drawer(self, rng: random.Random) -> Callable[[], Architecture]:
        """Return the function that draws for one trial; it is called again while its result was seen before."""

    def _propose(self, count: int) -> list[Architecture]:
        asked: list[Architecture] = []
        for _ in range(count):
            rng = random.Random(derive_seed(self._seed, "proposal", self._next_number))
            architecture = self._new(self._drawer(rng))
            if architecture is None:
                break
            self._seen.add(architecture)
            self._next_number += 1
            asked.append(architecture)
        return asked

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`."""
        super().tell(trials)
        self._seen.update(trial.architecture for trial in trials)

    def proposed(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.proposed`."""
        super().proposed(trials)
        self._seen.update(trial.architecture for trial in trials)

    def _new(self, draw: Callable[[], Architecture]) -> Architecture | None:
        for _ in range(_DRAWS):
            drawn = draw()
            if drawn not in self._seen:
                return drawn
        if self._walk is None:
            self._walk = self.space.enumerate()
        try:
            return next((one for one in self._walk if one not in self._seen), None)
        except EndlessDomain:
            self._walk = None
            return drawn
