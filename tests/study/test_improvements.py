"""Which trials are gains, however they come in, and how many rounds have brought none."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nasflow.config.search import Objective
from nasflow.pareto import pareto_ranks
from nasflow.space.architecture import Architecture
from nasflow.study.improvements import Gains
from nasflow.trial import Trial, TrialStatus

ACCURACY = [Objective(metric="acc")]
BOTH = [Objective(metric="acc"), Objective(metric="ms", direction="minimize")]


def trial(number: int, acc: float, ms: float = 0.0, **changes: Any) -> Trial:
    values = {"round": 0, "seed": 1, "status": TrialStatus.TRAINED, "metrics": {"acc": acc, "ms": ms}}
    return Trial(number=number, architecture=Architecture({"n": number}), **{**values, **changes})


def numbers(gains: list[Trial]) -> list[int]:
    return [gain.number for gain in gains]


def test_of_trials_that_come_in_together_the_best_is_the_gain():
    gains = Gains(ACCURACY)
    assert numbers(gains.take([trial(0, 0.5), trial(1, 0.7), trial(2, 0.7), trial(3, 0.6)])) == [1]
    assert numbers(gains.take([trial(4, 0.7)])) == [], "as good is not better"
    assert numbers(gains.take([trial(5, 0.8)])) == [5]


def test_only_trained_results_count():
    gains = Gains(ACCURACY)
    failed = Trial(number=0, round=0, seed=1, architecture=Architecture({}), status=TrialStatus.FAILED)
    assert gains.take([failed, trial(1, 0.9, replayed_from=7)]) == []
    assert numbers(gains.take([trial(2, 0.1, status=TrialStatus.STOPPED_EARLY)])) == [2]


def test_what_is_on_record_is_no_gain_again():
    on_record = [trial(1, 0.7, round=1), trial(0, 0.5), trial(2, 0.6, round=2)]
    gains = Gains(ACCURACY, on_record)
    assert gains.take(on_record) == []
    assert gains.rounds_without(1) == 0
    assert gains.rounds_without(3) == 2


def test_rounds_without_gain_are_counted_from_the_last_that_had_one():
    gains = Gains(ACCURACY)
    assert gains.rounds_without(0) == 1, "the first round may bring nothing"
    gains.take([trial(0, 0.5, round=1)])
    assert [gains.rounds_without(number) for number in (1, 2, 4)] == [0, 1, 3]
    gains.take([trial(1, 0.9, round=0)])
    assert gains.rounds_without(4) == 3, "a retried trial of an earlier round is no gain of a later one"


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=12), st.integers(1, 4))
def test_several_objectives_gain_by_the_pareto_front(points: list[tuple[int, int]], at_once: int) -> None:
    gains = Gains(BOTH)
    trials = [trial(number, *map(float, point)) for number, point in enumerate(points)]
    found: set[int] = set()
    for start in range(0, len(trials), at_once):
        now = trials[: start + at_once]
        before = set(found)
        found |= set(numbers(gains.take(trials[start : start + at_once])))
        ranks = pareto_ranks([[-one.metrics["acc"], one.metrics["ms"]] for one in now])
        first = {one.number for one, rank in zip(now, ranks, strict=True) if rank == 0}
        values = {(trials[number].metrics["acc"], trials[number].metrics["ms"]) for number in first}
        assert found - before <= first
        assert values <= {(trials[n].metrics["acc"], trials[n].metrics["ms"]) for n in found}


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_directions(direction):
    gains = Gains([Objective(metric="acc", direction=direction)])
    gains.take([trial(0, 0.5)])
    assert numbers(gains.take([trial(1, 0.4)])) == ([1] if direction == "minimize" else [])
