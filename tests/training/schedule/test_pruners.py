"""Who is stopped: the rules themselves, against Optuna's where it has the same, and in the words of their papers."""

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasflow.config.search import (
    CustomPrunerConfig,
    HalvingPrunerConfig,
    MedianPrunerConfig,
    MergeConfig,
    Objective,
    parse_config,
)
from nasflow.errors import ConfigError, TrialError
from nasflow.training.schedule.pruners import (
    HalvingPruner,
    MedianPruner,
    Pruner,
    best_first,
    check_pruner,
    make_pruner,
)

optuna.logging.set_verbosity(optuna.logging.ERROR)

HERE = Path(__file__).parent
LOSS = [Objective(metric="loss", direction="minimize")]
SCORE = [Objective(metric="score", direction="maximize")]
BOTH = [*LOSS, *SCORE]
NUMBERS = st.integers(-4, 4).map(float)
UNSURE = st.one_of(NUMBERS, st.sampled_from([math.nan, math.inf, -math.inf]))

Histories = dict[int, list[dict[str, float]]]


def histories(values: st.SearchStrategy[float] = NUMBERS, size: int = 12) -> st.SearchStrategy[Histories]:
    """Learning curves of 1 to 9 epochs of some trials."""
    metrics = st.fixed_dictionaries({"loss": values, "score": values})
    return st.dictionaries(st.integers(0, 99), st.lists(metrics, min_size=1, max_size=9), min_size=1, max_size=size)


def candidates(known: Histories) -> list[int]:
    """Those that stand at the epoch at which the first one does."""
    epoch = len(next(iter(known.values())))
    return [trial for trial, history in known.items() if len(history) == epoch]


PRUNERS: list[Pruner] = [
    build(objectives, config)
    for objectives in (LOSS, SCORE, BOTH)
    for build, config in (
        (MedianPruner, MedianPrunerConfig(warmup_epochs=0, min_others=1)),
        (MedianPruner, MedianPrunerConfig()),
        (HalvingPruner, HalvingPrunerConfig(reduction_factor=2)),
        (HalvingPruner, HalvingPrunerConfig()),
    )
]


@given(histories(UNSURE), st.randoms(), st.sampled_from(PRUNERS))
def test_verdicts_follow_from_the_histories_alone(known: Histories, random: Any, pruner: Pruner) -> None:
    """Not from the order of trials, nor from who else is judged: all at once, or one by one."""
    judged = candidates(known)
    stopped = pruner.stop(judged, known)
    assert stopped <= set(judged)
    shuffled = dict(random.sample(list(known.items()), len(known)))
    assert pruner.stop(random.sample(judged, len(judged)), shuffled) == stopped
    assert {trial for trial in judged if pruner.stop([trial], known)} == stopped
    assert pruner.stop([], known) == set()


@given(histories(UNSURE), st.sampled_from([pruner for pruner in PRUNERS if isinstance(pruner, HalvingPruner)]))
def test_halving_keeps_someone(known: Histories, pruner: Pruner) -> None:
    """Whoever has come so far, together or one after the other: not all of them are stopped."""
    epoch = min(map(len, known.values()))
    arrived: Histories = {}
    going_on = set[int]()
    for trial, history in known.items():
        arrived[trial] = history[:epoch]
        if not pruner.stop([trial], arrived):
            going_on.add(trial)
    assert going_on
    assert len(pruner.stop(list(arrived), arrived)) < len(arrived)


# --- median ------------------------------------------------------------------------------------------------------


@given(histories(), st.sampled_from([LOSS, SCORE]), st.integers(0, 3), st.integers(1, 3), st.integers(1, 4))
def test_median_as_optuna(
    known: Histories, objectives: list[Objective], warmup: int, every: int, min_others: int
) -> None:
    config = MedianPrunerConfig(warmup_epochs=warmup, every_epochs=every, min_others=min_others)
    judged = candidates(known)
    expected = {
        trial
        for trial in judged
        if optuna_stops(
            known, trial, objectives[0], n_warmup_steps=warmup, interval_steps=every, n_min_trials=min_others
        )
    }
    assert MedianPruner(objectives, config).stop(judged, known) == expected


def optuna_stops(known: Histories, trial: int, objective: Objective, **options: int) -> bool:
    """The verdict of Optuna's MedianPruner on a running trial, where all the others have completed."""

    def frozen(number: int, state: optuna.trial.TrialState) -> optuna.trial.FrozenTrial:
        steps = {step: metrics[objective.metric] for step, metrics in enumerate(known[number])}
        complete = state is optuna.trial.TrialState.COMPLETE
        return optuna.trial.create_trial(state=state, value=0.0 if complete else None, intermediate_values=steps)

    study = optuna.create_study(direction=objective.direction)
    study.add_trials([frozen(other, optuna.trial.TrialState.COMPLETE) for other in known if other != trial])
    pruner = optuna.pruners.MedianPruner(n_startup_trials=0, **options)
    return pruner.prune(study, frozen(trial, optuna.trial.TrialState.RUNNING))


def at_one_epoch(metrics: Sequence[Mapping[str, float]]) -> Histories:
    return {trial: [dict(values)] for trial, values in enumerate(metrics)}


def test_median_of_two_objectives_stops_the_dominated() -> None:
    """Numbers 3 and 4 are nowhere better than the medians of the others; 1 is far worse in one, but better in one."""
    points = [(1, 1), (6, 6), (3, 3), (4, 3), (4, 2), (2, 4), (3, 3)]
    known = at_one_epoch([{"loss": loss, "score": score} for loss, score in points])
    pruner = MedianPruner(BOTH, MedianPrunerConfig(warmup_epochs=0))
    stopped = pruner.stop(list(known), known)

    def dominated(trial: int) -> bool:
        others = np.array([point for other, point in enumerate(points) if other != trial])
        loss, score = np.median(others, axis=0)
        mine = points[trial]
        return bool(mine[0] >= loss and mine[1] <= score and (mine[0] > loss or mine[1] < score))

    assert stopped == {trial for trial in known if dominated(trial)} == {3, 4}


def test_median_compares_the_best_value_so_far() -> None:
    known: Histories = {trial: [{"loss": 5.0}, {"loss": 4.0}] for trial in range(5)}
    known |= {7: [{"loss": 3.0}, {"loss": 9.0}], 8: [{"loss": 4.5}, {"loss": 4.5}], 9: [{"loss": math.nan}] * 2}
    assert MedianPruner(LOSS, MedianPrunerConfig()).stop(list(known), known) == {8, 9}


def test_median_needs_others_that_came_as_far() -> None:
    config = MedianPrunerConfig(min_others=3)
    known: Histories = {trial: [{"loss": 1.0}, {"loss": 1.0}] for trial in range(3)} | {8: [{"loss": 2.0}] * 2}
    assert MedianPruner(LOSS, config).stop([8], known) == {8}
    del known[2][1]
    assert MedianPruner(LOSS, config).stop([8], known) == set()


# --- halving -----------------------------------------------------------------------------------------------------


@given(
    st.lists(st.lists(st.integers(0, 10**6), min_size=9, max_size=9), min_size=1, max_size=12),
    st.sampled_from([2, 3]),
    st.sampled_from([1, 2]),
    st.sampled_from([LOSS, SCORE]),
)
def test_halving_one_by_one_as_optuna(
    curves: list[list[int]], factor: int, min_epochs: int, objectives: list[Objective]
) -> None:
    """Trials one after the other, each to its end, as Optuna runs them. Equal values it lets pass: here they differ."""
    number = itertools.count()
    distinct = [[value * 1000.0 + next(number) for value in curve] for curve in curves]
    pruner = HalvingPruner(objectives, HalvingPrunerConfig(reduction_factor=factor, min_epochs=min_epochs))
    known: Histories = {}
    lengths = []
    for trial, curve in enumerate(distinct):
        known[trial] = []
        for value in curve:
            known[trial].append({objectives[0].metric: value})
            if pruner.stop([trial], known):
                break
        lengths.append(len(known[trial]))
    assert lengths == optuna_lengths(distinct, objectives[0].direction, factor, min_epochs)


def optuna_lengths(curves: list[list[float]], direction: str, factor: int, min_epochs: int) -> list[int]:
    """How far Optuna's SuccessiveHalvingPruner lets each trial come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=min_epochs, reduction_factor=factor)
    study = optuna.create_study(direction=direction, pruner=pruner)
    lengths = []
    for curve in curves:
        trial = study.ask()
        epochs = 0
        for epochs, value in enumerate(curve, start=1):
            trial.report(value, epochs)
            if trial.should_prune():
                break
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        lengths.append(epochs)
    return lengths


@pytest.mark.parametrize(
    ("config", "rungs"),
    [
        (HalvingPrunerConfig(), [1, 3, 9]),
        (HalvingPrunerConfig(reduction_factor=2, min_epochs=3), [3, 6, 12]),
        (HalvingPrunerConfig(reduction_factor=4, min_epochs=2), [2, 8]),
    ],
    ids=["1 by 3", "3 by 2", "2 by 4"],
)
def test_halving_judges_at_its_rungs(config: HalvingPrunerConfig, rungs: list[int]) -> None:
    pruner = HalvingPruner(LOSS, config)
    for epoch in range(1, 14):
        known = {trial: [{"loss": float(trial)}] * epoch for trial in range(12)}
        keep = 12 // config.reduction_factor if epoch in rungs else 12
        assert pruner.stop(list(known), known) == set(range(keep, 12)), epoch


def test_halving_judges_those_that_come_together_together() -> None:
    """Of 9 that arrive at once the best 3 go on; of 9 more, those among the best 6 of all."""
    pruner = HalvingPruner(LOSS, HalvingPrunerConfig())
    known = at_one_epoch([{"loss": loss} for loss in (8, 7, 6, 5, 4, 3, 2, 1, 0)])
    assert set(known) - pruner.stop(list(known), known) == {6, 7, 8}
    later = {trial: [{"loss": trial - 9.5}] for trial in range(9, 18)}
    assert set(later) - pruner.stop(list(later), known | later) == {9, 10, 11}


def test_halving_equals_go_by_number_and_what_is_not_finite_last() -> None:
    pruner = HalvingPruner(SCORE, HalvingPrunerConfig())
    known = at_one_epoch([{"score": value} for value in (math.nan, 1.0, 1.0, 1.0, math.inf, 0.0)])
    assert set(known) - pruner.stop(list(known), known) == {1, 2}


def test_several_objectives_by_front_then_the_lonely_first() -> None:
    points = {
        **{1: (0.0, 10.0), 2: (4.0, 5.5), 3: (4.5, 5.0), 4: (6.0, 4.0), 5: (10.0, 0.0)},  # the first front
        **{6: (8.0, 8.0), 7: (9.0, 9.0)},  # one behind the other
        **{8: (math.inf, 0.0)},
    }
    order = best_first(points)
    assert set(order[:2]) == {1, 5}
    assert order[2:] == [4, 2, 3, 6, 7, 8]


@given(st.dictionaries(st.integers(0, 50), st.tuples(UNSURE, UNSURE), max_size=15))
def test_no_one_is_ordered_before_who_dominates_it(points: dict[int, tuple[float, float]]) -> None:
    points = {trial: tuple(v if math.isfinite(v) else math.inf for v in point) for trial, point in points.items()}
    order = best_first(points)
    assert sorted(order) == sorted(points)
    for place, trial in enumerate(order):
        for better in order[place + 1 :]:
            a, b = np.array(points[better]), np.array(points[trial])
            assert not ((a <= b).all() and (a < b).any()) or not np.isfinite(a).all()


# --- configuration -----------------------------------------------------------------------------------------------


class Slowest(Pruner):
    """Stops those above a limit."""

    def __init__(self, objectives: Sequence[Objective], limit: float = 1.0):
        super().__init__(objectives)
        self.limit = limit

    def stop(self, candidates: Any, histories: Any) -> set[int]:
        return {trial for trial in candidates if self.losses(histories[trial][-1])[0] > self.limit}


def test_custom() -> None:
    target = f"{Path(__file__).name}:Slowest"
    pruner = make_pruner(CustomPrunerConfig(target=target, params={"limit": 2.0}), LOSS, HERE)
    assert pruner is not None
    known = at_one_epoch([{"loss": 1.0}, {"loss": 3.0}])
    assert pruner.stop([0, 1], known) == {1}
    assert make_pruner(None, LOSS, HERE) is None


@pytest.mark.parametrize(
    ("pruner", "said"),
    [
        ({"kind": "halving", "reduction_factor": 1}, "config: pruner.reduction_factor: Input should be greater than"),
        ({"kind": "median", "warmup": 1}, "config: pruner.warmup: unknown key; did you mean 'warmup_epochs'?"),
        ({"kind": "hyperband"}, "config: pruner.kind: there is no 'hyperband'; it should be one of median, halving"),
        (
            {"kind": "custom", "target": "test_pruners.py:search"},
            "pruner.target: 'test_pruners.py:search' is no subclass of",
        ),
        ({"kind": "custom", "target": "test_pruners.py:no"}, "target 'test_pruners.py:no': 'test_"),
        (
            {"kind": "custom", "target": "test_pruners.py:Slowest", "params": {"most": 1}},
            "pruner.params: test_pruners.py:Slowest does not take these params: got an unexpected",
        ),
    ],
    ids=["factor", "key", "kind", "no pruner", "no name", "params"],
)
def test_mistakes(pruner: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_pruner(search(pruner))
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    ("pruner", "epochs", "every", "said"),
    [
        ({"kind": "halving"}, 28, 2, "after 1, 3, 9, ... of 28 epochs, none of which evaluator.validate_every, 2, div"),
        ({"kind": "halving", "min_epochs": 4}, 8, 8, "after 4 of 8 epochs, none of which evaluator.validate_every, 8"),
        ({"kind": "median", "every_epochs": 5}, {"int": [10, 15], "step": 5}, 5, "after 2, 7, 12 of 15 epochs, none"),
        ({"kind": "median"}, 4, 4, "after 2, 3 of 4 epochs, none of which evaluator.validate_every, 4"),
        ({"kind": "halving", "min_epochs": 2}, 28, 2, None),
        ({"kind": "halving", "reduction_factor": 2}, {"pick": [8, 4]}, 2, None),
        ({"kind": "median", "warmup_epochs": 4, "every_epochs": 5}, 15, 5, None),
        ({"kind": "median"}, 1, 1, None),
    ],
    ids=["rungs", "late", "median", "at the end", "multiples", "some rungs", "after each", "one epoch"],
)
def test_some_epoch_after_which_it_compares_is_validated(
    pruner: dict[str, Any], epochs: Any, every: int, said: str | None
) -> None:
    config = search(pruner, evaluator={**EVALUATOR, "epochs": epochs, "validate_every": every})
    if said is None:
        check_pruner(config)
        return
    with pytest.raises(ConfigError) as caught:
        check_pruner(config)
    assert str(caught.value).startswith(f"pruner: it compares trials {said}")


EVALUATOR = {"kind": "classification", "data": {"target": "spaces.py:blobs"}}


def search(pruner: dict[str, Any], **values: Any) -> Any:
    return parse_config(
        {
            "name": "s",
            "space": {"target": "spaces.py:net"},
            "evaluator": EVALUATOR,
            "pruner": pruner,
            "base_dir": HERE,
            **values,
        }
    )


def test_without_merging_there_is_nothing_to_compare() -> None:
    check_pruner(search({"kind": "median"}))
    with pytest.raises(ConfigError, match=r"^pruner: .*merge.enabled"):
        check_pruner(search({"kind": "median"}, merge=MergeConfig(enabled=False)))


def test_a_metric_that_is_missing_is_named() -> None:
    pruner = HalvingPruner(BOTH, HalvingPrunerConfig())
    pruner.check({"loss": 1.0, "score": math.nan, "more": 2.0})
    with pytest.raises(TrialError, match=r"objectives: no metric 'score' was logged.*there are: loss, more$"):
        pruner.check({"loss": 1.0, "more": 2.0})
