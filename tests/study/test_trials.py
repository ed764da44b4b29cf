"""Trials in a study: submitted once, replayed, failed, retried, ranked."""

import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nasflow.errors import StudyError
from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture
from nasflow.study.base import SCORED
from nasflow.study.improvements import Gains
from nasflow.study.records import AttemptState, EpochRecord, FinalRecord, RoundState
from nasflow.study.study import Study
from nasflow.trial import Trial, TrialStatus


def arch(*widths: int) -> list[Architecture]:
    return [Architecture({"width": width, "act": "relu"}) for width in widths]


def train(study: Study, round: int, scores: dict[int, float | dict[str, float]], stopped_early: bool = False) -> None:
    """Record a batch that ended well, with one epoch each."""
    finals = [
        FinalRecord(number, score if isinstance(score, dict) else {"val_accuracy": score}, 1, stopped_early)
        for number, score in scores.items()
    ]
    for final in finals:
        attempt = study.new_attempt(final.trial)
        study.start_attempt(attempt.id, f"job-{attempt.id}")
        epoch = EpochRecord(final.trial, 1, final.metrics, 2.5, attempt.id)
        study.record_epochs([epoch])
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [final])


def begun(study: Study, round: int, architectures: Sequence[Architecture]) -> list[Trial]:
    study.begin_round(round)
    return study.submit_trials(round, architectures)


def test_a_submitted_trial_has_its_number_round_and_seed(study: Study) -> None:
    first = begun(study, 0, arch(8, 16))
    second = begun(study, 1, arch(32))
    assert [(t.number, t.round, t.status) for t in [*first, *second]] == [
        (0, 0, TrialStatus.SUBMITTED),
        (1, 0, TrialStatus.SUBMITTED),
        (2, 1, TrialStatus.SUBMITTED),
    ]
    assert second[0].seed == derive_seed(0, arch(32)[0].to_json())
    assert study.trial(2) == second[0]
    assert list(study.trial(0).architecture) == ["width", "act"]  # in the order asked


def test_the_best_architectures_are_counted_once(study: Study) -> None:
    tried = [Architecture({"width": width, "stop_after": until}) for width in (8, 16, 32) for until in (1, 2, 4)]
    begun(study, 0, [*tried, *arch(64)])
    train(study, 0, {number: 0.9 - number / 100 for number in range(10)})
    assert [trial.number for trial in study.best_architectures(3)] == [0, 3, 6]
    assert [trial.number for trial in study.best_architectures(9)] == [0, 3, 6, 9]
    assert [trial.number for trial in study.leaderboard(3)] == [0, 1, 2]


def test_a_study_without_scored_trials_has_no_best_architectures(study: Study) -> None:
    assert study.best_architectures(3) == []


def test_a_round_is_submitted_once(study: Study) -> None:
    first = begun(study, 0, arch(8, 16))
    assert study.submit_trials(0, arch(1, 2, 3)) == first
    assert study.trials() == first


def test_a_round_must_have_begun(study: Study) -> None:
    with pytest.raises(StudyError, match="no round 0"):
        study.submit_trials(0, arch(8))


def test_a_known_result_is_replayed_with_its_epochs(study: Study) -> None:
    begun(study, 0, arch(8, 16))
    train(study, 0, {0: 0.9})
    train(study, 0, {1: 0.7}, stopped_early=True)
    again = begun(study, 1, arch(16, 8))
    assert [(t.status, t.metrics, t.replayed_from, t.epochs) for t in again] == [
        (TrialStatus.STOPPED_EARLY, {"val_accuracy": 0.7}, 1, 1),
        (TrialStatus.TRAINED, {"val_accuracy": 0.9}, 0, 1),
    ]
    assert study.epochs([3])[3] == [EpochRecord(3, 1, {"val_accuracy": 0.9}, 0.0, None)]
    assert [t.number for t in study.leaderboard(10)] == [0, 1]
    assert begun(study, 2, arch(8))[0].replayed_from == 0  # the original, not the replay


def test_a_duplicate_in_flight_waits_for_its_original(study: Study) -> None:
    trials = begun(study, 0, arch(8, 8, 16))
    assert [t.replayed_from for t in trials] == [None, 0, None]
    assert study.settle_replays(0) == []
    train(study, 0, {0: 0.9})
    assert [t.number for t in study.settle_replays(0)] == [1]
    assert study.trial(1).metrics == {"val_accuracy": 0.9}
    assert len(study.epochs([1])[1]) == 1
    assert study.settle_replays(0) == []


def test_a_failure_is_replayed_and_says_so(study: Study) -> None:
    begun(study, 0, arch(8, 8))
    study.fail_trial(0, "ValueError: bad width")
    study.settle_replays()
    text = "same architecture as trial 0: ValueError: bad width"
    assert (study.trial(1).status, study.trial(1).error) == (TrialStatus.FAILED, text)
    later = begun(study, 1, arch(8))[0]
    assert (later.status, later.error, later.metrics) == (TrialStatus.FAILED, text, {})


def test_reset_failed_makes_failures_and_their_replays_wait_again(study: Study) -> None:
    begun(study, 0, arch(8, 8, 16, 32))
    train(study, 0, {2: 0.5})
    study.fail_trial(0, "boom")
    study.fail_trial(3, "does not fit", TrialStatus.INVALID)
    study.settle_replays()
    assert [t.number for t in study.reset_failed()] == [0, 1]
    assert study.reset_failed() == []
    assert [(t.status, t.error) for t in study.trials()] == [
        (TrialStatus.SUBMITTED, "boom"),
        (TrialStatus.SUBMITTED, "same architecture as trial 0: boom"),
        (TrialStatus.TRAINED, None),
        (TrialStatus.INVALID, "does not fit"),
    ]
    train(study, 0, {0: 0.8})
    study.settle_replays()
    assert study.trial(1).metrics == {"val_accuracy": 0.8}


def test_reset_failed_finds_what_a_killed_retry_left_again(study: Study) -> None:
    begun(study, 0, arch(8, 8, 16, 32))
    study.fail_trial(0, "boom")
    study.settle_replays()
    study.end_round(0, RoundState.COMPLETED, "its hours are over")
    study.reset_failed()
    attempt = study.new_attempt(0)
    study.start_attempt(attempt.id, "job")
    assert [(t.number, t.status, t.error) for t in study.reset_failed()] == [
        (0, TrialStatus.SUBMITTED, "boom"),
        (1, TrialStatus.SUBMITTED, "same architecture as trial 0: boom"),
    ], "and none that has not failed"
    assert study.new_attempt(0).id == attempt.id, "its job may run on"
    train(study, 0, {0: 0.8})
    study.settle_replays()
    assert study.reset_failed() == []
    assert {t.error for t in study.trials()} == {None}


def test_fail_trial_leaves_a_finished_trial_alone(study: Study) -> None:
    begun(study, 0, arch(8, 16))
    train(study, 0, {0: 0.9})
    assert study.fail_trial(0, "late").status is TrialStatus.TRAINED
    study.fail_trial(1, "first")
    assert study.fail_trial(1, "second").error == "first"


def test_trials_are_filtered_and_paged(study: Study) -> None:
    begun(study, 0, arch(1, 2, 3))
    begun(study, 1, arch(4, 5))
    train(study, 0, {0: 0.1, 3: 0.2})
    assert [t.number for t in study.trials(TrialStatus.TRAINED)] == [0, 3]
    assert [t.number for t in study.trials({TrialStatus.TRAINED, TrialStatus.SUBMITTED}, round=1)] == [3, 4]
    assert [t.number for t in study.trials(limit=2, offset=2)] == [2, 3]
    assert [t.number for t in study.trials(offset=4)] == [4]
    assert study.trials(round=7) == []
    counts = study.counts()
    assert counts[TrialStatus.TRAINED] == 2 and counts[TrialStatus.SUBMITTED] == 3 and counts[TrialStatus.FAILED] == 0


def test_a_missing_trial_is_a_clear_error(study: Study) -> None:
    begun(study, 0, arch(1, 2))
    with pytest.raises(StudyError, match="'digits' has no trial 5; it has 2"):
        study.trial(5)
    with pytest.raises(StudyError, match="'digits' has no trial 5; it has 2"):
        study.trials_numbered([0, 5])


def test_some_trials_are_given_by_number(study: Study) -> None:
    trials = begun(study, 0, arch(1, 2, 3))
    assert study.trials_numbered([2, 0]) == [trials[0], trials[2]]
    assert study.trials_numbered([]) == []


def test_trials_that_have_not_ended(study: Study) -> None:
    begun(study, 0, arch(1, 2, 3))
    train(study, 0, {1: 0.5})
    study.start_attempt(study.new_attempt(2).id, "job")
    assert study.unfinished([2, 1, 0]) == study.trials_numbered([0, 2])
    assert study.unfinished([1]) == study.unfinished([]) == []


def test_history_has_the_finished_trials_of_ended_rounds(study: Study) -> None:
    begun(study, 0, arch(1, 2))
    begun(study, 1, arch(3))
    begun(study, 2, arch(4))
    train(study, 0, {0: 0.1, 2: 0.3, 3: 0.4})
    study.end_round(0, RoundState.COMPLETED)
    study.end_round(1, RoundState.FAILED, "all failed")
    assert [[t.number for t in trials] for trials in study.history()] == [[0], [2]]


def test_leaderboard_breaks_ties_by_parameters_then_number(study: Study) -> None:
    begun(study, 0, arch(1, 2, 3, 4, 5))
    scores: dict[int, float | dict[str, float]] = {
        0: 0.5,
        1: {"val_accuracy": 0.5, "parameters": 900.0},
        2: {"val_accuracy": 0.5, "parameters": 100.0},
        3: {"val_accuracy": 0.9, "parameters": 9000.0},
        4: {"val_accuracy": 0.5, "parameters": 100.0},
    }
    train(study, 0, scores)
    assert [t.number for t in study.leaderboard(10)] == [3, 2, 4, 1, 0]
    assert [t.number for t in study.leaderboard(2)] == [3, 2]


def test_leaderboard_minimizes(open_study: Callable[..., Study]) -> None:
    study = open_study(objectives=[{"metric": "val_loss", "direction": "minimize"}])
    begun(study, 0, arch(1, 2, 3))
    train(study, 0, {0: {"val_loss": 2.0}, 1: {"val_loss": 0.5}, 2: {"val_loss": 1.0}})
    assert [t.number for t in study.leaderboard(10)] == [1, 2, 0]


def test_leaderboard_of_several_objectives_is_by_pareto_front(open_study: Callable[..., Study]) -> None:
    study = open_study(objectives=[{"metric": "acc"}, {"metric": "parameters", "direction": "minimize"}])
    begun(study, 0, arch(1, 2, 3, 4, 5))
    points = [(0.9, 100.0), (0.8, 200.0), (0.7, 10.0), (0.95, 1000.0), (0.7, 300.0)]
    train(study, 0, {i: {"acc": acc, "parameters": size} for i, (acc, size) in enumerate(points)})
    assert [t.number for t in study.leaderboard(10)] == [3, 0, 2, 1, 4]
    assert [t.number for t in study.leaderboard(2)] == [3, 0]


@pytest.mark.parametrize("objectives", [["acc"], ["loss"], ["acc", "loss"]])
def test_the_front_says_all_that_gains_ask(open_study: Callable[..., Study], objectives: list[str]) -> None:
    directions = {"acc": "maximize", "loss": "minimize"}
    study = open_study(objectives=[{"metric": name, "direction": directions[name]} for name in objectives])
    assert study.front() == []
    draw = random.Random(len(objectives))
    for round in range(5):
        new = [trial.number for trial in begun(study, round, arch(*range(10 * round, 10 * round + 6), 0))]
        trained = [number for number in new if study.trial(number).replayed_from is None][:5]
        train(study, round, {n: {"acc": draw.randrange(6) / 5, "loss": draw.randrange(6) / 5} for n in trained})
        everything = Gains(study.config.objectives, study.trials(SCORED))
        front = Gains(study.config.objectives, study.front())
        assert front.rounds_without(round) == everything.rounds_without(round)
        assert front.take(study.trials()) == everything.take(study.trials()) == []
    assert len(study.front()) == (1 if len(objectives) == 1 else 2)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(widths=st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=4), min_size=1, max_size=4))
def test_every_trial_ends_like_the_first_of_its_architecture(
    open_study: Callable[..., Study], widths: list[list[int]]
) -> None:
    name = f"study-{derive_seed(widths)}"
    study = open_study(name=name)
    if study.trials():  # the same example again
        return
    for round, values in enumerate(widths):
        first = begun(study, round, arch(*values))
        assert study.submit_trials(round, []) == first
        for trial in study.trials(TrialStatus.SUBMITTED, round):
            if trial.replayed_from is None:
                width = trial.architecture["width"]
                if width == 0:
                    study.fail_trial(trial.number, "zero")
                else:
                    train(study, round, {trial.number: width / 10})
        study.settle_replays(round)
        study.settle_replays(round)
    trials = study.trials()
    assert [t.number for t in trials] == list(range(sum(map(len, widths))))
    firsts: dict[Architecture, Trial] = {}
    for trial in trials:
        original = firsts.setdefault(trial.architecture, trial)
        assert trial.status is original.status and trial.status.finished
        assert (trial.metrics, trial.seed, trial.epochs) == (original.metrics, original.seed, original.epochs)
        assert trial.replayed_from == (None if trial is original else original.number)
    study.close()
