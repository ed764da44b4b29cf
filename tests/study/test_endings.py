"""How jobs ended badly stays on record, also when the attempt has succeeded since; stores of the version before."""

from collections.abc import Callable
from dataclasses import replace

from sqlalchemy import text

from nasflow.space.architecture import Architecture
from nasflow.study.database.store import SCHEMA_VERSION, SchemaRow, Store
from nasflow.study.records import AttemptState, Ending, FinalRecord
from nasflow.study.study import Study
from nasflow.trial import FailureKind

OpenStudy = Callable[..., Study]


def batch(study: Study) -> int:
    """A batch of two trials; its id."""
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"depth": 1}), Architecture({"depth": 2})])
    return study.plan_batches(0, [[0, 1]])[0].id


def test_endings_outlast_the_attempts_restart(open_study: OpenStudy) -> None:
    study = open_study()
    id = batch(study)
    evidence = {"signal": 9, "oom_kills": 1, "peak_rss": 2**33}
    study.start_attempt(id, "first")
    study.record_outcome(
        id, AttemptState.FAILED, failure=FailureKind.TRIAL, error="no memory", slot="gpu-0.0", evidence=evidence,
        places=1,
    )  # fmt: skip
    assert study.start_attempt(id, "second").places == 1
    study.record_outcome(id, AttemptState.FAILED, failure=FailureKind.INFRASTRUCTURE, error="host gone")
    study.start_attempt(id, "third")
    finals = [FinalRecord(trial, {"val_accuracy": 0.5}, 4) for trial in (0, 1)]
    study.record_outcome(id, AttemptState.SUCCEEDED, finals)
    (attempt,) = study.attempts()
    assert (attempt.state, attempt.failure, attempt.error) == (AttemptState.SUCCEEDED, None, None)
    assert [replace(ending, slot=None, started_at=None, ended_at=None) for ending in attempt.endings] == [
        Ending("first", FailureKind.TRIAL, "no memory", evidence, 1),
        Ending("second", FailureKind.INFRASTRUCTURE, "host gone", {}),
    ]
    assert [ending.slot for ending in attempt.endings] == ["gpu-0.0", None]
    times = [time for ending in attempt.endings for time in (ending.started_at, ending.ended_at)]
    times.append(attempt.started_at)
    assert times == sorted(time for time in times if time is not None)
    assert attempt.places == 1, "the later loss says nothing about memory"
    assert attempt.endings[0].failure is FailureKind.TRIAL
    assert study.troubled_attempts(5) == [attempt]


def test_attempts_without_trouble_are_not_troubled(open_study: OpenStudy) -> None:
    study = open_study()
    id = batch(study)
    study.start_attempt(id, "first")
    study.record_outcome(id, AttemptState.SUCCEEDED)
    assert study.troubled_attempts(5) == []
    assert study.attempts()[0].endings == () and study.attempts()[0].places is None


def test_a_store_of_the_first_version_is_taken_over(open_study: OpenStudy, store_url: str) -> None:
    id = batch(open_study())
    store = Store(store_url)
    with store.write("schema") as session:
        session.execute(text("ALTER TABLE attempts DROP COLUMN endings"))
        session.execute(text("UPDATE nasflow_schema SET version = 1"))
    store.close()
    study = Study.load(store_url, "digits")
    study.start_attempt(id, "first")
    study.record_outcome(id, AttemptState.FAILED, failure=FailureKind.TRIAL, error="no memory", places=1)
    assert study.attempts()[0].places == 1
    study.close()
    store = Store(store_url)
    with store.read() as session:
        assert session.get(SchemaRow, SCHEMA_VERSION)
    store.close()
