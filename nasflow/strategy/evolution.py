"""Regularized (aging) evolution, Real et al. 2019, Regularized Evolution for Image Classifier Architecture Search."""

import random
from collections import deque
from collections.abc import Callable, Sequence

from nasflow.config.search import EvolutionConfig, Objective
from nasflow.errors import SpaceError
from nasflow.pareto import pareto_ranks
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.random_base import NoveltyStrategy
from nasflow.strategy.scores import losses
from nasflow.trial import Trial


class Evolution(NoveltyStrategy):
    """The population is the newest scored trials, whatever their score. Winners of tournaments become parents.

    Until the population is full, trials are sampled at random. Then each child has one parent and one choice changed,
    or two parents and every choice from one of them; a child that was proposed before is mutated further. With
    several objectives a tournament is won by one of those that no other participant dominates.
    """

    def __init__(
        self,
        space: Space,
        config: EvolutionConfig,
        objectives: Sequence[Objective],
        seed: int,
        first: Sequence[Architecture] = (),
    ):
        super().__init__(space, seed, first)
        self._config = config
        self._objectives = objectives
        self._population: deque[tuple[list[float], Architecture]] = deque(maxlen=config.population)
        self._fitting: dict[Architecture, bool] = {}  # whether a parent fits the space

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`."""
        super().tell(trials)
        for trial in sorted(trials, key=lambda trial: trial.number):
            score = losses(trial, self._objectives)
            if score is not None:
                self._population.append((score, trial.architecture))

    def _drawer(self, rng: random.Random) -> Callable[[], Architecture]:
        if len(self._population) < self._config.population:
            return lambda: self.space.sample(rng)
        child: Architecture | None = None

        def draw() -> Architecture:
            nonlocal child
            child = self._child(rng) if child is None else self.space.mutate(child, rng)
            return child

        return draw

    def _child(self, rng: random.Random) -> Architecture:
        parent = self._tournament(rng)
        if rng.random() < self._config.crossover:
            return self.space.crossover(parent, self._tournament(rng), rng)
        return self.space.mutate(parent, rng)

    def _tournament(self, rng: random.Random) -> Architecture:
        """Return the winner of those that fit the space; a sample if none does, because the space has changed since."""
        entrants = rng.sample(self._population, min(self._config.tournament, len(self._population)))
        while entrants:
            ranks = pareto_ranks([score for score, _ in entrants], enough=1)
            winner = rng.choice([entrant for entrant, rank in zip(entrants, ranks, strict=True) if rank == 0])
            if self._fits(winner[1]):
                return winner[1]
            entrants.remove(winner)
        return self.space.sample(rng)

    def _fits(self, architecture: Architecture) -> bool:
        if architecture not in self._fitting:
            try:
                self.space.domains(architecture)
                self._fitting[architecture] = True
            except SpaceError:
                self._fitting[architecture] = False
        return self._fitting[architecture]
