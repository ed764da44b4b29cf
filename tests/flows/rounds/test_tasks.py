"""What the tasks of a round do anew when an earlier controller was killed."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from nasflow.config.search import SearchConfig
from nasflow.flows import retry_flow
from nasflow.flows.rounds import record, tasks
from nasflow.flows.rounds.tasks import submit_trials, train_batch
from nasflow.flows.session.session import SearchSession, search_session
from nasflow.space.architecture import Architecture
from nasflow.study.records import AttemptState, FinalRecord, RoundState
from nasflow.trial import TrialStatus
from tests.flows.searches import HERE


@contextmanager
def opened(name: str, **keys: Any) -> Iterator[SearchSession]:
    config = {
        "name": name,
        "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 12]}},
        "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}},
        "training_service": {"kind": "debug"},
        "base_dir": HERE,
        **keys,
    }
    with search_session(SearchConfig.model_validate(config)) as session:
        session.events = SimpleNamespace(submitted=lambda trials: None, ended=lambda trials: None)  # type: ignore[assignment]
        yield session


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A session in its first round."""
    monkeypatch.chdir(tmp_path)
    with opened("digits") as session:
        session.study.begin_round(0)
        yield session


def of_width(width: int) -> Architecture:
    return Architecture({"kind": "ok", "width": width})


def test_trials_on_record_that_were_not_checked_yet_are_checked(session):
    session.study.submit_trials(0, [of_width(8), of_width(1000)])  # and the controller is killed
    right, wrong = submit_trials.fn(session, 0)
    assert (right.status, wrong.status) == (TrialStatus.SUBMITTED, TrialStatus.INVALID)
    assert "width" in wrong.error


def test_trials_of_planned_batches_end_if_the_space_has_changed_and_they_fit_it_no_more(session):
    study = session.study
    study.submit_trials(0, [of_width(8), of_width(1000)])
    study.plan_batches(0, [[0, 1]])
    trials = submit_trials.fn(session, 0)
    assert [trial.status for trial in trials] == [TrialStatus.SUBMITTED, TrialStatus.INVALID]
    [peer] = tasks._peers(session, trials[1:], tasks._devices(session, trials, 1))
    assert (peer.trial, peer.parameters, peer.failed) == (1, 0, False)


def test_a_retry_leaves_out_what_fits_no_more(session, monkeypatch):
    study, trained = session.study, []
    study.submit_trials(0, [of_width(8), of_width(1000)])
    for number in (0, 1):
        study.fail_trial(number, "it failed")
    monkeypatch.setattr(retry_flow, "train_alone_all", lambda _, trials: trained.extend(t.number for t in trials))
    retry_flow._train(session, study.reset_failed())
    assert (trained, study.trial(1).status) == ([0], TrialStatus.INVALID)


def test_a_lost_batch_is_not_submitted_beside_jobs_of_its_trials_alone(session, monkeypatch):
    study = session.study
    study.submit_trials(0, [of_width(8), of_width(12)])
    (batch,) = study.plan_batches(0, [[0, 1]])
    study.start_attempt(batch.id, "lost")
    study.record_outcome(batch.id, AttemptState.FAILED, failure=tasks.FailureKind.INFRASTRUCTURE, error="lost")
    alone = study.new_attempt(0)
    study.start_attempt(alone.id, "alone")  # and the controller is killed
    followed = []

    def follow(session, attempt, trials, left):
        followed.append(([trial.number for trial in trials], [trial.number for trial in left]))
        return study.record_outcome(study.start_attempt(attempt.id, "again").id, AttemptState.SUCCEEDED)

    monkeypatch.setattr(tasks, "_follow", follow)
    train_batch.fn(session, batch, "0, 1")
    assert followed == [([1], [0])]


def test_replays_in_other_rounds_are_settled(session, monkeypatch):
    """An interrupted retry has left them waiting."""
    for name in ("show_markdown", "show_plans", "show_leaderboard", "show_pictures"):
        monkeypatch.setattr(record, name, lambda *_: None)
    study = session.study
    study.submit_trials(0, [of_width(8)])
    study.begin_round(1)
    study.submit_trials(1, [of_width(8)])
    study.end_round(1, RoundState.COMPLETED)
    attempt = study.new_attempt(0)
    study.start_attempt(attempt.id, "job")
    study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(0, {"val_accuracy": 0.5}, 1)])
    record.persist_metrics.fn(session, 0)
    assert study.trial(1).status is TrialStatus.TRAINED


def test_the_summary_of_a_round_counts_no_epochs_that_an_earlier_round_trained(session, monkeypatch):
    shown = []
    monkeypatch.setattr(record, "show_markdown", lambda key, text, title: shown.append(text))
    for name in ("show_plans", "show_leaderboard", "show_pictures"):
        monkeypatch.setattr(record, name, lambda *_: None)
    study = session.study
    for number, epochs in enumerate((1, 3)):
        study.begin_round(number)
        study.submit_trials(number, [Architecture({**of_width(8), "stop_after": epochs})])
        attempt = study.new_attempt(number)
        study.start_attempt(attempt.id, "job")
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(number, {"val_accuracy": 0.5}, epochs)])
        record.persist_metrics.fn(session, number)
    assert ["1 epochs trained" in shown[0], "2 epochs trained" in shown[1]] == [True, True]
