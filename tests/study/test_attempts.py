"""Attempts in a study: planned, started, ended in one transaction, never counted twice."""

import logging
import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, event

from nasflow.errors import StudyError
from nasflow.space.architecture import Architecture
from nasflow.study.records import Attempt, AttemptKind, AttemptState, EpochRecord, FinalRecord
from nasflow.study.study import Study
from nasflow.trial import FailureKind, TrialStatus


@pytest.fixture
def study(open_study: Callable[..., Study]) -> Study:
    """A study with six submitted trials in round 0."""
    study = open_study()
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": width}) for width in range(6)])
    return study


def statuses(study: Study) -> list[str]:
    return [trial.status.value for trial in study.trials()]


def test_batches_are_planned_once(study: Study) -> None:
    first = study.plan_batches(0, [[2, 0], [1]])
    assert [(a.kind, a.number, a.members, a.state) for a in first] == [
        (AttemptKind.BATCH, 0, (2, 0), AttemptState.PLANNED),
        (AttemptKind.BATCH, 1, (1,), AttemptState.PLANNED),
    ]
    assert study.plan_batches(0, [[5]]) == first == study.batches(0)
    assert [study.attempt(attempt.id) for attempt in first] == first


def test_a_batch_of_an_unknown_trial_is_not_planned(study: Study) -> None:
    with pytest.raises(StudyError, match="no trial 9"):
        study.plan_batches(0, [[0], [1, 9]])
    assert study.batches(0) == []


def test_a_started_attempt_keeps_its_handle(study: Study) -> None:
    planned = study.plan_batches(0, [[0, 1]])[0]
    handle = {"service": "local", "job_id": "r0-b0", "data": {"ticket": 7, "share": 0.25}}
    started = study.start_attempt(planned.id, "r0-b0", handle)
    assert (started.state, started.job_id, started.handle) == (AttemptState.RUNNING, "r0-b0", handle)
    assert started.started_at is not None and started.started_at.tzinfo is not None
    assert statuses(study)[:3] == ["running", "running", "submitted"]
    again = study.start_attempt(planned.id, "r0-b0", handle)
    assert again == started  # re-attached: the same start, no restart


def test_an_outcome_is_recorded_whole(study: Study) -> None:
    attempt = study.plan_batches(0, [[0, 1, 2, 3, 4]])[0]
    study.start_attempt(attempt.id, "b0")
    ended = study.record_outcome(
        attempt.id,
        AttemptState.FAILED,
        [
            FinalRecord(0, {"val_accuracy": 0.9, "val_loss": math.inf, "parameters": 12.0}, 4),
            FinalRecord(1, {"val_accuracy": 0.8}, 2, stopped_early=True),
            FinalRecord(4, {"val_accuracy": math.nan, "val_loss": 1.0}, 4),
        ],
        {2: "ValueError: shapes"},
        failure=FailureKind.TRIAL,
        error="exit code 1",
        slot="cpu-1",
    )
    assert (ended.state, ended.failure, ended.error, ended.slot) == (
        AttemptState.FAILED, FailureKind.TRIAL, "exit code 1", "cpu-1",
    )  # fmt: skip
    assert ended.ended_at is not None
    assert statuses(study) == ["trained", "stopped_early", "submitted", "submitted", "failed", "submitted"]
    trials = study.trials()
    assert trials[0].metrics == {"val_accuracy": 0.9, "parameters": 12.0}  # JSON has no infinity
    assert [t.epochs for t in trials[:2]] == [4, 2]
    assert [t.error for t in trials[1:4]] == [None, "ValueError: shapes", None]
    assert (
        trials[4].error is not None and "'val_accuracy' is missing" in trials[4].error and "val_loss" in trials[4].error
    )


def test_recording_an_epoch_reads_no_others(study: Study) -> None:
    read: list[int] = []

    def count(connection: Any, cursor: Any, statement: str, parameters: Any, *_: Any) -> None:
        if "FROM epochs" in statement and "count(*)" not in statement:
            found = connection.exec_driver_sql(f"SELECT count(*) FROM ({statement}) AS found", parameters)
            read.append(found.scalar_one())

    records = [EpochRecord(trial, epoch, {"loss": 1.0}, 1.0) for epoch in range(1, 40) for trial in range(6)]
    study.record_epochs(records)
    event.listen(Engine, "before_cursor_execute", count)
    try:
        study.record_epochs([EpochRecord(trial, epoch, {"loss": 2.0}, 1.0) for epoch in (39, 40) for trial in (2, 4)])
    finally:
        event.remove(Engine, "before_cursor_execute", count)
    assert read == [2]
    assert [(record.epoch, record.metrics) for record in study.epochs([4])[4][38:]] == [
        (39, {"loss": 1.0}), (40, {"loss": 2.0}),
    ]  # fmt: skip


def test_an_outcome_repeated_changes_nothing(study: Study) -> None:
    attempt = study.plan_batches(0, [[0, 1]])[0]
    study.start_attempt(attempt.id, "b0")
    ended = study.record_outcome(
        attempt.id, AttemptState.FAILED, [FinalRecord(0, {"val_accuracy": 0.9}, 4)], {1: "boom"}
    )
    alone = study.new_attempt(1)
    study.start_attempt(alone.id, "a0")
    before = study.trials()
    assert study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(0, {"val_accuracy": 0.1}, 4)]) == ended
    assert study.trials() == before
    assert before[1].status is TrialStatus.RUNNING and before[1].error == "boom"
    study.record_outcome(alone.id, AttemptState.SUCCEEDED, [FinalRecord(1, {"val_accuracy": 0.5}, 4)])
    assert study.trial(1).error is None


def test_an_outcome_about_strangers_is_refused_whole(study: Study) -> None:
    attempt = study.plan_batches(0, [[0, 1]])[0]
    study.start_attempt(attempt.id, "b0")
    finals = [FinalRecord(0, {"val_accuracy": 0.9}, 4), FinalRecord(5, {"val_accuracy": 0.9}, 4)]
    with pytest.raises(ValueError, match=r"\[5\] are not members"):
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, finals)
    assert statuses(study)[0] == "running"
    with pytest.raises(ValueError, match="running"):
        study.record_outcome(attempt.id, AttemptState.RUNNING)


def test_a_lost_batch_starts_again_and_counts_it(study: Study) -> None:
    attempt = study.plan_batches(0, [[0, 1]])[0]
    study.start_attempt(attempt.id, "b0")
    study.record_outcome(
        attempt.id, AttemptState.FAILED, failure=FailureKind.INFRASTRUCTURE, error="killed by signal 9"
    )
    assert statuses(study)[:2] == ["submitted", "submitted"]
    again = study.start_attempt(attempt.id, "b0")
    assert (again.restarts, again.state, again.failure, again.error, again.ended_at) == (
        1, AttemptState.RUNNING, None, None, None,
    )  # fmt: skip
    assert statuses(study)[:2] == ["running", "running"]
    study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(n, {"val_accuracy": 0.5}, 1) for n in (0, 1)])
    with pytest.raises(StudyError, match="has succeeded"):
        study.start_attempt(attempt.id, "b0")
    assert statuses(study)[:2] == ["trained", "trained"]


def test_one_unfinished_attempt_alone(study: Study) -> None:
    first = study.new_attempt(3)
    assert study.new_attempt(3) == first
    study.start_attempt(first.id, "a0", {"pid": 1})
    assert study.new_attempt(3).handle == {"pid": 1}  # a restarted controller finds the running job
    study.record_outcome(first.id, AttemptState.FAILED, failures={3: "boom"}, failure=FailureKind.TRIAL)
    other, second = study.new_attempt(4), study.new_attempt(3)
    assert [(a.kind, a.number, a.members) for a in (first, other, second)] == [
        (AttemptKind.ALONE, 0, (3,)),
        (AttemptKind.ALONE, 1, (4,)),
        (AttemptKind.ALONE, 2, (3,)),
    ]
    batch = study.plan_batches(0, [[3, 4]])[0]
    assert [a.id for a in study.attempts(trial=3)] == [first.id, second.id, batch.id]
    assert len(study.attempts(round=0)) == len(study.attempts()) == 4
    assert study.attempts(round=1) == study.attempts(trial=0) == []


def test_an_unknown_attempt_is_a_clear_error(study: Study, open_study: Callable[..., Study]) -> None:
    attempt = study.new_attempt(0)
    with pytest.raises(StudyError, match=f"'other' has no attempt {attempt.id}"):
        open_study(name="other").start_attempt(attempt.id, "x")
    with pytest.raises(StudyError, match=f"'other' has no attempt {attempt.id}"):
        open_study(name="other").attempt(attempt.id)


def test_epochs_are_recorded_once(study: Study, caplog: pytest.LogCaptureFixture) -> None:
    attempt = study.plan_batches(0, [[0, 1]])[0]
    rows = [EpochRecord(0, epoch, {"val_loss": 1 / epoch, "bad": math.nan}, 0.5, attempt.id) for epoch in (1, 2)]
    study.record_epochs(rows)
    with caplog.at_level(logging.WARNING):
        study.record_epochs([rows[1], rows[0], rows[1]])
    assert not caplog.records
    expected = [EpochRecord(0, epoch, {"val_loss": 1 / epoch, "bad": None}, 0.5, attempt.id) for epoch in (1, 2)]
    assert study.epochs([0, 1]) == {0: expected, 1: []}
    assert study.trial(0).epochs == 2
    study.record_epochs([EpochRecord(0, 1, {"val_loss": 7.0})])
    assert "7.0" in caplog.text and "trial 0, epoch 1" in caplog.text
    assert study.epochs([0]) == {0: expected}
    study.record_epochs([])


_REPORTS = st.lists(
    st.lists(st.tuples(st.integers(0, 5), st.integers(1, 4)), max_size=8), min_size=1, max_size=6
)  # fmt: skip


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(reports=_REPORTS)
def test_whatever_is_told_again_there_is_one_row_an_epoch(study: Study, reports: list[list[tuple[int, int]]]) -> None:
    before = {(n, row.epoch) for n, rows in study.epochs(range(6)).items() for row in rows}
    for report in reports:
        study.record_epochs([EpochRecord(n, epoch, {"val_loss": n + epoch / 10}) for n, epoch in report])
    told = before | {pair for report in reports for pair in report}
    rows = [row for rows in study.epochs(range(6)).values() for row in rows]
    assert sorted((row.trial, row.epoch) for row in rows) == sorted(told)
    assert all(row.metrics == {"val_loss": row.trial + row.epoch / 10} for row in rows)
    for trial in study.trials():
        assert trial.epochs == max((epoch for n, epoch in told if n == trial.number), default=0)


_STEPS = st.sampled_from(["start", "final", "fail", "cancel", "again"])


@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=st.lists(_STEPS, max_size=8))
def test_every_call_twice_is_as_good_as_once(open_study: Callable[..., Study], steps: list[str]) -> None:
    """A controller that dies after a commit repeats its last call when it is back."""

    def play(study: Study, times: int) -> list[tuple[object, ...]]:
        study.begin_round(0)
        study.submit_trials(0, [Architecture({"width": width}) for width in range(3)])
        attempt = study.plan_batches(0, [[0, 1]])[0]
        for step in steps:
            attempt = next(a for a in study.batches(0) if a.id == attempt.id)
            for _ in range(times):
                _play_step(study, attempt, step)
        shown: list[tuple[object, ...]] = [(t.status, t.metrics, t.error, t.epochs) for t in study.trials()]
        return [*shown, *((a.state, a.error, a.restarts, a.members) for a in study.attempts())]

    names = [f"{times}-{'-'.join(steps) or 'none'}" for times in (1, 2)]
    once, twice = (open_study(name=name) for name in names)
    if not once.trials():
        assert play(once, 1) == play(twice, 2)
    once.close()
    twice.close()


def _play_step(study: Study, attempt: Attempt, step: str) -> None:
    if step == "start" and attempt.state is not AttemptState.SUCCEEDED:
        study.start_attempt(attempt.id, "job")
    elif step == "final":
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(0, {"val_accuracy": 0.5}, 2)])
    elif step == "fail":
        study.record_outcome(attempt.id, AttemptState.FAILED, failures={1: "boom"}, error="boom")
    elif step == "cancel":
        study.record_outcome(attempt.id, AttemptState.CANCELLED)
    elif step == "again":
        study.record_epochs([EpochRecord(1, 1, {"val_loss": 1.0})])


def test_an_outcome_that_fails_half_way_leaves_nothing(study: Study) -> None:
    attempt = study.plan_batches(0, [[0, 1]])[0]
    study.start_attempt(attempt.id, "b0")
    engine = study._store._engine

    def stop(connection: object, cursor: object, statement: str, *rest: object) -> None:
        if statement.startswith("UPDATE attempts"):
            raise RuntimeError("power cut")

    event.listen(engine, "before_cursor_execute", stop)
    finals = [FinalRecord(n, {"val_accuracy": 0.5}, 1) for n in (0, 1)]
    with pytest.raises(RuntimeError, match="power cut"):
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, finals)
    event.remove(engine, "before_cursor_execute", stop)
    assert statuses(study)[:2] == ["running", "running"]
    assert study.trial(0).metrics == {}
    study.record_outcome(attempt.id, AttemptState.SUCCEEDED, finals)
    assert statuses(study)[:2] == ["trained", "trained"]


def test_a_test_adds_metrics_to_a_trial(study: Study) -> None:
    batch = study.plan_batches(0, [[1]])[0]
    study.start_attempt(batch.id, "b0")
    study.record_outcome(batch.id, AttemptState.SUCCEEDED, [FinalRecord(1, {"val_accuracy": 0.5}, 4)])
    test = study.new_attempt(1, AttemptKind.TEST)
    assert (test.kind, test.number, test.members) == (AttemptKind.TEST, 0, (1,))
    assert study.new_attempt(1, AttemptKind.TEST) == test, "it is not over"
    study.start_attempt(test.id, "t0")
    assert study.trial(1).status is TrialStatus.TRAINED
    study.record_outcome(test.id, AttemptState.SUCCEEDED, [FinalRecord(1, {"test_accuracy": 0.4}, 4)])
    tested = study.trial(1)
    assert (tested.status, tested.epochs) == (TrialStatus.TRAINED, 4)
    assert tested.metrics == {"val_accuracy": 0.5, "test_accuracy": 0.4}
    assert study.new_attempt(1, AttemptKind.TEST).number == 1
