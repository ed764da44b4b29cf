"""Optuna's samplers as strategies, through ask and tell."""

import inspect
import logging
import re
import warnings
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.samplers import BaseSampler
from optuna.trial import TrialState

from nasflow.config.search import Objective, OptunaConfig
from nasflow.errors import ConfigError, SpaceError
from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.strategy.optuna.asking import ask, finished, make_study, parameters, quiet
from nasflow.strategy.scores import losses
from nasflow.trial import Trial

_log = logging.getLogger(__name__)

_SAMPLERS: dict[str, tuple[Callable[..., BaseSampler], dict[str, Any]]] = {
    "tpe": (optuna.samplers.TPESampler, {"constant_liar": True}),  # a round is asked for before its results are known
    "nsga2": (optuna.samplers.NSGAIISampler, {}),
    "gp": (optuna.samplers.GPSampler, {"warn_independent_sampling": False}),
    "cmaes": (optuna.samplers.CmaEsSampler, {"warn_independent_sampling": False}),
    "qmc": (
        optuna.samplers.QMCSampler,
        {"scramble": True, "warn_independent_sampling": False, "warn_asynchronous_seeding": False},
    ),
}
_OBJECT = re.compile("Callable|Base[A-Z]|FrozenTrial")  # in the annotation of a param that no JSON value can be
_SINGLE_OBJECTIVE = ("cmaes",)
_WITH_GENERATIONS = (optuna.samplers.NSGAIISampler, optuna.samplers.CmaEsSampler)  # they learn from trials in one only


def make_sampler(config: OptunaConfig, objectives: int, seed: int) -> BaseSampler:
    """Return the sampler of a config; it draws choices that it can't model (e.g. categories in CMA-ES) at random.

    Raises:
        ConfigError: a param is unknown or refused, or the sampler can't do that many objectives; names the key.
    """
    if objectives > 1 and config.kind in _SINGLE_OBJECTIVE:
        raise ConfigError(
            f"strategy.kind: {config.kind} takes one objective, not {objectives}; tpe and nsga2 take more"
        )
    build, defaults = _SAMPLERS[config.kind]
    annotations = {name: str(param.annotation) for name, param in inspect.signature(build).parameters.items()}
    objects = [name for name, annotation in annotations.items() if _OBJECT.search(annotation)]
    known = [name for name in annotations if name not in ("seed", *objects)]
    for key, value in config.params.items():
        if key == "seed":
            raise ConfigError("strategy.params.seed: leave it out, the search's own seed is used")
        if key in objects and value is not None:
            raise ConfigError(
                f"strategy.params.{key}: leave it out; {config.kind} takes Python functions or objects there, which a "
                f"config can't hold; it also has {', '.join(known)}"
            )
        if key not in known and key not in objects:
            raise ConfigError(f"strategy.params.{key}: {config.kind} has no such param; it has {', '.join(known)}")
    params = {**defaults, **config.params, "seed": derive_seed(seed, "optuna") % 2**32}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            return build(**params)
    except (TypeError, ValueError) as error:
        keys = ", ".join(f"strategy.params.{key}" for key in config.params)
        raise ConfigError(f"{keys or 'strategy.kind'}: {config.kind} refuses this: {error}") from error


class OptunaStrategy(Strategy):
    """Asks an Optuna sampler for every choice when the space asks for it.

    Samplers have their own random and other state, so a resumed search replays the record: each round is asked for
    again and compared. If the proposals differ (another version of Optuna, or a trial that failed then and was
    retried since), the sampler learns from the rest of the record as from finished trials.

    Args:
        space: what is searched.
        sampler: Optuna's.
        objectives: what is minimized or maximized.
        first: what is proposed first, without those on record; the sampler treats them as its own.
    """

    def __init__(
        self,
        space: Space,
        sampler: BaseSampler,
        objectives: Sequence[Objective],
        first: Sequence[Architecture] = (),
    ):
        self._space = space
        self._objectives = objectives
        self._study = make_study(sampler, len(objectives))
        self._asked: deque[list[tuple[optuna.Trial, Architecture]]] = deque()  # of each round without results
        self._diverged = False
        self._waiting = list(dict.fromkeys(first))  # the given ones that are still to be proposed

    def ask(self, count: int) -> list[Architecture]:
        """See `Strategy.ask`. An architecture may be repeated."""
        given, self._waiting = self._waiting[:count], self._waiting[count:]
        return self._ask_round(count, given)

    def _ask_round(self, count: int, given: Sequence[Architecture]) -> list[Architecture]:
        asked = [self._ask(parameters(self._space, one)[0]) for one in given]
        asked += [self._ask() for _ in range(count - len(given))]
        self._asked.append(asked)
        return [architecture for _, architecture in asked]

    def tell(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.tell`. A round that was not asked for here is replayed."""
        trials = sorted(trials, key=lambda trial: trial.number)
        if not self._asked:
            self._replay(trials)
        of_round = self._asked.popleft()
        for trial in trials:
            values = losses(trial, self._objectives)
            asked = next((one for one in of_round if one[1] == trial.architecture), None)
            if asked is not None:
                of_round.remove(asked)
                self._finish(asked[0], values)
            elif values is not None:
                self._learn(trial.architecture, values)
        self._give_up(of_round)

    def proposed(self, trials: Sequence[Trial]) -> None:
        """See `Strategy.proposed`."""
        self._replay(sorted(trials, key=lambda trial: trial.number))

    def _replay(self, trials: Sequence[Trial]) -> None:
        """Restore the sampler's state after it proposed `trials`, if it proposes them again."""
        recorded = [trial.architecture for trial in trials]
        given = self._given_of(recorded)
        self._waiting = [one for one in self._waiting if one not in recorded]
        if self._diverged:
            self._asked.append([])
            return
        if self._ask_round(len(recorded), given) == recorded:
            return
        self._diverged = True
        _log.warning(
            "Optuna %s does not propose again what is on record from round %d on, so this search does not go on "
            "exactly as it would have without a restart; it still learns from all of its record.",
            optuna.__version__,
            trials[0].round,
        )
        self._give_up(self._asked.pop())
        self._asked.append([])

    def _given_of(self, recorded: Sequence[Architecture]) -> list[Architecture]:
        """Return those of a recorded round that were given: a round begins with them."""
        given: list[Architecture] = []
        for one in recorded:
            if one not in self._waiting or one in given:
                break
            given.append(one)
        return given

    def _ask(self, given: Mapping[str, Any] | None = None) -> tuple[optuna.Trial, Architecture]:
        """Return a trial of the sampler that has begun, and its architecture: of given parameters, or the sampler's."""
        if given is not None:
            self._study.enqueue_trial(dict(given))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ExperimentalWarning)
            trial, architecture = ask(self._study, self._space)
            if given is not None and isinstance(self._study.sampler, _WITH_GENERATIONS):
                _ = trial.relative_params  # so that the sampler counts it in its generation
            return trial, architecture

    def _learn(self, architecture: Architecture, values: list[float]) -> None:
        """Let the sampler learn from a trial that it has not proposed, unless the space refuses it by now."""
        try:
            ended = finished(self._space, architecture, values)
        except SpaceError:
            return
        if isinstance(self._study.sampler, _WITH_GENERATIONS):
            self._finish(self._ask(ended.params)[0], values)
        else:
            self._study.add_trial(ended)

    def _give_up(self, asked: Sequence[tuple[optuna.Trial, Architecture]]) -> None:
        for optuna_trial, _ in asked:
            self._finish(optuna_trial, None)

    def _finish(self, trial: optuna.Trial, values: list[float] | None) -> None:
        with quiet():
            if values is None:
                self._study.tell(trial, state=TrialState.FAIL)
            else:
                self._study.tell(trial, values)
