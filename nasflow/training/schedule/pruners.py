"""Which members of a job are not worth training further, judged by comparing their learning curves.

Optuna's pruners do not serve here: they judge one trial at a time, in the order in which trials ask, and refuse
studies with several objectives.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import numpy.typing as npt

from nasflow.config.search import (
    CustomPrunerConfig,
    HalvingPrunerConfig,
    MedianPrunerConfig,
    Objective,
    PrunerConfig,
    SearchConfig,
    TrainingConfig,
)
from nasflow.errors import ConfigError, TrialError
from nasflow.load_target import check_params, load_target
from nasflow.pareto import pareto_ranks

Metrics = Mapping[str, float]
Histories = Mapping[int, Sequence[Metrics]]


class Pruner(ABC):
    """Base class of pruners, which choose the members to stop at the end of an epoch.

    The decision about a member must depend on the histories alone, never on the order of members, the other candidates,
    time, chance or earlier calls: a job that was interrupted must decide as it would have without the interruption.

    Args:
        objectives: of the search, one or several.
    """

    def __init__(self, objectives: Sequence[Objective]):
        self.objectives = objectives

    @abstractmethod
    def stop(self, candidates: Collection[int], histories: Histories) -> set[int]:
        """Return those of `candidates` that are to stop now.

        Args:
            candidates: trials that have just finished the same epoch together and have more to train.
            histories: metrics by epoch (the first epoch first) of every trial of the job so far, including those that
                have ended or were stopped, but not those that wait. Each epoch has every objective's metric, which may
                be NaN or infinite, and `parameters`.
        """

    def check(self, metrics: Metrics) -> None:
        """Raise TrialError if a member's metrics lack an objective."""
        for objective in self.objectives:
            if objective.metric not in metrics:
                raise TrialError(
                    f"objectives: no metric '{objective.metric}' was logged, which the pruner needs in every epoch; "
                    f"there are: {', '.join(sorted(metrics))}"
                )

    def losses(self, metrics: Metrics) -> list[float]:
        """Return one number per objective, to be minimized; infinity for what is missing or not finite."""
        values = [o.to_loss(metrics.get(o.metric, math.nan)) for o in self.objectives]
        return [value if math.isfinite(value) else math.inf for value in values]


class MedianPruner(Pruner):
    """The median stopping rule (Golovin et al. 2017, Google Vizier), in the form of Optuna's MedianPruner.

    A member stops if its best value so far is worse than the median of the others' values in this epoch. With several
    objectives it stops if none of its best values is better than the median, and at least one is worse.
    """

    def __init__(self, objectives: Sequence[Objective], config: MedianPrunerConfig):
        super().__init__(objectives)
        self._config = config

    def stop(self, candidates: Collection[int], histories: Histories) -> set[int]:
        """See `Pruner.stop`."""
        epoch = max((len(histories[trial]) for trial in candidates), default=0)
        if not self.judges(epoch):
            return set()
        now = {trial: self.losses(history[epoch - 1]) for trial, history in histories.items() if len(history) >= epoch}
        return {trial for trial in candidates if self._is_worse(trial, histories[trial], now)}

    def judges(self, epoch: int) -> bool:
        """Whether members are compared after so many epochs."""
        past_warmup = epoch - 1 - self._config.warmup_epochs
        return past_warmup >= 0 and past_warmup % self._config.every_epochs == 0

    def _is_worse(self, trial: int, history: Sequence[Metrics], now: Mapping[int, list[float]]) -> bool:
        others = np.array(
            [losses for other, losses in now.items() if other != trial and all(map(math.isfinite, losses))]
        )
        if len(others) < self._config.min_others:
            return False
        best = np.min([self.losses(metrics) for metrics in history], axis=0)
        median = np.median(others, axis=0)
        return bool((best >= median).all() and (best > median).any())


class HalvingPruner(Pruner):
    """Asynchronous successive halving (Li et al. 2020, ASHA), for members that train side by side.

    At `min_epochs` * `reduction_factor`^k epochs, k = 0, 1, ..., a member goes on only if it is among the best
    1 / `reduction_factor` of all that have reached this epoch. Members that reach it together are compared together;
    the best one always goes on. With several objectives, members are ordered by front, then by crowding distance, the
    largest first, as in NSGA-II (Deb et al. 2002), and equal ones by number.
    """

    def __init__(self, objectives: Sequence[Objective], config: HalvingPrunerConfig):
        super().__init__(objectives)
        self._config = config

    def stop(self, candidates: Collection[int], histories: Histories) -> set[int]:
        """See `Pruner.stop`."""
        epoch = max((len(histories[trial]) for trial in candidates), default=0)
        if not self.judges(epoch):
            return set()
        arrived = {
            trial: self.losses(history[epoch - 1]) for trial, history in histories.items() if len(history) >= epoch
        }
        places = max(1, len(arrived) // self._config.reduction_factor)
        return set(candidates) - set(best_first(arrived)[:places])

    def judges(self, epoch: int) -> bool:
        """Whether members are compared after so many epochs."""
        rung = self._config.min_epochs
        while rung < epoch:
            rung *= self._config.reduction_factor
        return rung == epoch


def best_first(losses: Mapping[int, Sequence[float]]) -> list[int]:
    """Return trials by front, crowding distance and number; those with an infinite loss last."""
    finite = sorted(trial for trial, point in losses.items() if all(map(math.isfinite, point)))
    points = np.array([losses[trial] for trial in finite], dtype=float)
    ranks = np.array(pareto_ranks(list(points)), dtype=int)
    crowding = np.zeros(len(finite))
    for rank in np.unique(ranks):
        crowding[ranks == rank] = _crowding(points[ranks == rank])
    order = np.lexsort((np.array(finite), -crowding, ranks))
    return [*(finite[index] for index in order), *sorted(losses.keys() - set(finite))]


def _crowding(points: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return how far each point `[N, M]` of a front is from its neighbours, `[N]`; infinity at the ends."""
    distance = np.zeros(len(points))
    for values in points.T:
        order = np.argsort(values, kind="stable")
        span = values[order[-1]] - values[order[0]]
        if span > 0:
            distance[order[1:-1]] += (values[order[2:]] - values[order[:-2]]) / span
            distance[order[[0, -1]]] = np.inf
    return distance


def make_pruner(config: PrunerConfig | None, objectives: Sequence[Objective], base_dir: Path) -> Pruner | None:
    """Return the pruner of a config, None if it has none. A custom one is built as `Class(objectives=, **params)`.

    Raises:
        ConfigError: a custom target does not exist, is no pruner or does not take its params; names the key.
    """
    match config:
        case None:
            return None
        case MedianPrunerConfig():
            return MedianPruner(objectives, config)
        case HalvingPrunerConfig():
            return HalvingPruner(objectives, config)
        case CustomPrunerConfig():
            return _custom(config, objectives, base_dir)
    assert_never(config)


def check_pruner(config: SearchConfig) -> None:
    """Raise ConfigError if the pruner of a search can't be made, or has nothing to compare."""
    pruner = make_pruner(config.pruner, config.objectives, config.base_dir)
    if pruner is not None and not config.merge.enabled:
        raise ConfigError(
            "pruner: it compares trials that share a job, but merge.enabled: false gives each its own; drop one of them"
        )
    if isinstance(pruner, MedianPruner | HalvingPruner) and isinstance(config.evaluator, TrainingConfig):
        _refuse_unvalidated(pruner, config.evaluator)


def _refuse_unvalidated(pruner: MedianPruner | HalvingPruner, evaluator: TrainingConfig) -> None:
    """Raise ConfigError if each epoch after which members would be compared is one without validation."""
    every, most = evaluator.validate_every, evaluator.most_epochs
    judged = [epoch for epoch in range(1, most) if pruner.judges(epoch)]
    if judged and all(epoch % every for epoch in judged):
        keys = "'min_epochs'" if isinstance(pruner, HalvingPruner) else "'warmup_epochs' and 'every_epochs'"
        after = ", ".join(map(str, judged[:3])) + (", ..." if len(judged) > 3 else "")
        raise ConfigError(
            f"pruner: it compares trials after {after} of {most} epochs, none of which evaluator.validate_every, "
            f"{every}, divides, so it would stop no trial; choose another {keys}, or validate more often"
        )


def _custom(config: CustomPrunerConfig, objectives: Sequence[Objective], base_dir: Path) -> Pruner:
    build: Any = load_target(config.target, base_dir)
    if not (isinstance(build, type) and issubclass(build, Pruner)):
        raise ConfigError(
            f"pruner.target: '{config.target}' is no subclass of nasflow.training.schedule.pruners.Pruner"
        )
    params = {**config.params, "objectives": objectives}
    check_params("pruner.params", config.target, build, **params)
    pruner: Pruner = build(**params)
    return pruner
