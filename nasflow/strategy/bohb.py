"""BOHB: Hyperband that draws new architectures by a model of those that have ended (Falkner et al. 2018)."""

import random
from collections.abc import Callable, Sequence

import optuna

from nasflow.config.search import HyperbandConfig, Objective, OptunaConfig
from nasflow.errors import SpaceError
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.hyperband import Hyperband
from nasflow.strategy.optuna.asking import ask, finished, make_study
from nasflow.strategy.optuna.sampler import make_sampler

_ENOUGH = 10  # results of a rung for a model, as Optuna's TPE begins after so many
_AT_RANDOM = 1 / 3  # of the new architectures, as in the paper


class Bohb(Hyperband):
    """Fits Optuna's TPE to the results of the highest rung that has enough, and draws architectures from it.

    A third of them is drawn at random instead.

    The model is fitted anew for each round, so that a resumed search needs no replay.
    """

    def __init__(
        self,
        space: Space,
        config: HyperbandConfig,
        objectives: Sequence[Objective],
        seed: int,
        first: Sequence[Architecture] = (),
    ):
        super().__init__(space, config, objectives, seed, first)
        self._model: optuna.Study | None = None
        self._ended_at: dict[tuple[int, Architecture], optuna.trial.FrozenTrial | None] = {}  # by rung

    def _propose(self, count: int) -> list[Architecture]:
        self._model = self._make_model()
        return super()._propose(count)

    def _drawer(self, rng: random.Random) -> Callable[[], Architecture]:
        model = self._model
        if model is None or rng.random() < _AT_RANDOM:
            return super()._drawer(rng)
        model.sampler = self._sampler(rng.getrandbits(32))
        return lambda: ask(model, self.space)[1]

    def _make_model(self) -> optuna.Study | None:
        """Return a study with the results at the highest rung that has enough; None if none has."""
        for rung in reversed(range(len(self._rungs))):
            scores: dict[Architecture, list[float]] = {}
            for bracket in range(len(self._weights)):
                scores |= self._scores.get((bracket, rung), {})
            if len(scores) >= _ENOUGH:
                study = make_study(self._sampler(0), len(self._objectives))
                ended = [self._as_ended(rung, *scored) for scored in scores.items()]
                study.add_trials([trial for trial in ended if trial is not None])
                return study
        return None

    def _as_ended(
        self, rung: int, architecture: Architecture, score: Sequence[float]
    ) -> optuna.trial.FrozenTrial | None:
        """Return a result as the model's; None if the space has changed, and the architecture fits it no more."""
        key = rung, architecture
        if key not in self._ended_at:
            try:
                self._ended_at[key] = finished(self.space, self._until(architecture, rung), score)
            except SpaceError:
                self._ended_at[key] = None
        return self._ended_at[key]

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        return make_sampler(OptunaConfig(kind="tpe"), len(self._objectives), seed)
