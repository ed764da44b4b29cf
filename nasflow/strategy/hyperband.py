"""Asynchronous successive halving (ASHA) and Hyperband.

ASHA is that of Li et al. 2020, A System for Massively Parallel Hyperparameter Tuning. Hyperband is that of Li et al.
2018, A Novel Bandit-Based Approach to Hyperparameter Optimization, with asynchronous brackets. A trial that is promoted
is a new trial of the same architecture that ends later; it goes on from the checkpoint of the first.
"""

import random
from collections.abc import Callable, Sequence

from nasflow.config.search import HyperbandConfig, Objective
from nasflow.errors import ConfigError
from nasflow.pareto import pareto_ranks
from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture
from nasflow.space.domain import Categorical
from nasflow.space.space import Space
from nasflow.strategy.random_base import NoveltyStrategy
from nasflow.strategy.scores import losses
from nasflow.trial import STOP_AFTER, Trial, without_stop


class Hyperband(NoveltyStrategy):
    """Promotes the best of each rung first, and fills a round with new architectures, drawn at random.

    A rung is a number of epochs, a bracket the architectures that began at the same rung. Of those that have ended at a
    rung, the best 1 / `reduction_factor` of their bracket are promoted to the next.
    """

    def __init__(
        self,
        space: Space,
        config: HyperbandConfig,
        objectives: Sequence[Objective],
        seed: int,
        first: Sequence[Architecture] = (),
    ):
        super().__init__(space, seed, first)
        self._objectives = objectives
        self._factor = config.reduction_factor
        self._rungs = _rungs(space, seed)
        count = 1 if config.kind == "asha" else len(self._rungs)
        powers = [len(self._rungs) - 1 - bracket for bracket in range(count)]
        self._weights = [self._factor**power / (power + 1) for power in powers]  # as many as in Hyperband's brackets
        self._reached: dict[Architecture, int] = {}  # the highest rung, by architecture
        self._bracket: dict[Architecture, int] = {}
        self._scores: dict[tuple[int, int], dict[Architecture, list[float]]] = {}  # by bracket and rung
        self._ended: set[Architecture] = set()  # by themselves, so that they would not go on
        for architecture in first:
            self._note(without_stop(architecture), self._rung(architecture))

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`."""
        super().tell(trials)
        for trial in sorted(trials, key=lambda trial: trial.number):
            architecture, rung = without_stop(trial.architecture), self._rung(trial.architecture)
            self._note(architecture, rung)
            score = losses(trial, self._objectives)
            if score is not None:
                self._scores.setdefault((self._bracket[architecture], rung), {})[architecture] = score
            if trial.epochs < self._rungs[rung]:
                self._ended.add(architecture)

    def proposed(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.proposed`."""
        super().proposed(trials)
        for trial in sorted(trials, key=lambda trial: trial.number):
            self._note(without_stop(trial.architecture), self._rung(trial.architecture))

    def _propose(self, count: int) -> list[Architecture]:
        promoted = self._promotions()[:count]
        for architecture in promoted:
            self._note(without_stop(architecture), self._rung(architecture))
        self._next_number += len(promoted)
        return promoted + super()._propose(count - len(promoted))

    def _drawer(self, rng: random.Random) -> Callable[[], Architecture]:
        return lambda: self.space.sample(rng)

    def _new(self, draw: Callable[[], Architecture]) -> Architecture | None:
        drawn = super()._new(draw)
        if drawn is None:
            return None
        rng = random.Random(derive_seed(self._seed, "bracket", self._next_number))
        [rung] = rng.choices(range(len(self._weights)), self._weights)
        self._note(without_stop(drawn), rung)
        return self._until(drawn, rung)

    def _promotions(self) -> list[Architecture]:
        """Return the architectures that may go on, those of the highest rungs first."""
        found = []
        for rung in reversed(range(len(self._rungs) - 1)):
            for bracket in range(len(self._weights)):
                ranked = _best_first(self._scores.get((bracket, rung), {}))
                best = ranked[: len(ranked) // self._factor]
                waiting = [one for one in best if self._reached[one] == rung and one not in self._ended]
                found += [self._until(architecture, rung + 1) for architecture in waiting]
        return found

    def _note(self, architecture: Architecture, rung: int) -> None:
        self._bracket.setdefault(architecture, min(rung, len(self._weights) - 1))
        self._reached[architecture] = max(rung, self._reached.get(architecture, 0))
        self._seen.update(self._until(architecture, rung) for rung in range(len(self._rungs)))

    def _rung(self, architecture: Architecture) -> int:
        until = architecture.get(STOP_AFTER, self._rungs[-1])  # a trial that fits the space no more has none
        return next((rung for rung, epochs in enumerate(self._rungs) if epochs >= until), len(self._rungs) - 1)

    def _until(self, architecture: Architecture, rung: int) -> Architecture:
        return Architecture({**architecture, STOP_AFTER: self._rungs[rung]})


def _rungs(space: Space, seed: int) -> list[int]:
    domain = space.domains(space.sample(random.Random(seed))).get(STOP_AFTER)
    if not isinstance(domain, Categorical):
        raise ConfigError("strategy: asha, hyperband and bohb need evaluator.stop_after: {pick: [...]}, or none at all")
    return sorted(int(epochs) for epochs in domain.options)  # type: ignore[arg-type]


def _best_first(scores: dict[Architecture, list[float]]) -> list[Architecture]:
    """Return architectures by their Pareto front and their first objective; of equal ones, the first told."""
    ranks = pareto_ranks(list(scores.values()))
    ranked = sorted(zip(scores, ranks, strict=True), key=lambda pair: (pair[1], scores[pair[0]][0]))
    return [architecture for architecture, _ in ranked]
