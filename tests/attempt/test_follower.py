"""An attempt records what its own members' job reports, and nothing of other trials."""

import logging
import threading
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

from nasflow.attempt.follower import AttemptFollower, _Reported
from nasflow.config.search import parse_config
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.errors import InterruptedSearchError
from nasflow.job.asked_end import asked_here
from nasflow.job.events import Ended, Epoch, Event, EventWriter, Evicted, Final, Started
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.space.architecture import Architecture
from nasflow.study.lease import Lease
from nasflow.study.records import Attempt, AttemptState
from nasflow.study.study import Study
from nasflow.training_service.base import JobHandle, JobStatus
from nasflow.training_service.debug import DebugService
from nasflow.trial import TrialStatus

MEMBER, OTHER, UNKNOWN = 0, 1, 99
LOOKED = threading.Event()


def run_hostile_job(path: Path) -> int:
    """Report epochs and ends of the job's member and of trials that it has no business with."""
    events = EventWriter(path.parent / "events.jsonl")
    events.write(Started(resumed={MEMBER: 0, OTHER: 0}))
    for trial in (MEMBER, OTHER, UNKNOWN):
        events.write(Epoch(trial=trial, epoch=1, metrics={"val_accuracy": 0.5}))
    events.write(Evicted(trial=UNKNOWN, epoch=1, error="none of the job's"))
    events.write(Final(trial=OTHER, epochs=1, metrics={"val_accuracy": 1.0}))
    events.write(Final(trial=MEMBER, epochs=1, metrics={"val_accuracy": 0.5}))
    events.write(Ended())
    events.close()
    return 0


def run_job_that_waits(path: Path) -> int:
    """Wait until it is asked to end, as it is after its first look."""
    run_hostile_job(path)
    asked = asked_here()
    while not asked():
        LOOKED.set()
        time.sleep(0.01)
    return 1


def open_study(folder: Path, lease: Lease | None = None) -> Study:
    return Study.open(
        parse_config(
            {
                "name": "digits",
                "space": {"target": "nasflow.space.ready:mlp", "params": {"classes": 10}},
                "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:Digits"}},
                "store": f"sqlite:///{folder}/nasflow.db",
                "base_dir": folder,
            }
        ),
        lease,
    )


def planned(study: Study) -> Attempt:
    """An attempt at one of two trials."""
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": width}) for width in range(2)])
    return study.plan_batches(0, [[MEMBER], [OTHER]])[0]


def follow(study: Study, attempt: Attempt, folder: Path, seen: list[Event]) -> Attempt:
    service = DebugService(DebugServiceConfig(), folder / "root", f"{__name__}:run_hostile_job")
    members = [MemberSpec(trial=MEMBER, architecture=study.trial(MEMBER).architecture, seed=0)]

    def make_spec(job_id: str) -> JobSpec:
        return JobSpec.of_search(study.config, job_id, study.config.evaluator.data, members)

    return AttemptFollower(study, service, threading.Event()).follow(attempt, make_spec, seen.append)


def test_events_of_trials_that_are_no_members_are_skipped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    study = open_study(tmp_path)
    attempt = planned(study)
    seen: list[Event] = []
    with caplog.at_level(logging.WARNING, "nasflow.attempt"):
        ended = follow(study, attempt, tmp_path, seen)
    assert ended.state is AttemptState.SUCCEEDED
    assert [study.trial(number).status for number in (MEMBER, OTHER)] == [TrialStatus.TRAINED, TrialStatus.SUBMITTED]
    assert [len(records) for records in study.epochs([MEMBER, OTHER]).values()] == [1, 0]
    assert {event.trial for event in seen if hasattr(event, "trial")} == {MEMBER}
    assert [record.message for record in caplog.records] == [
        "job r000-batch-000-0 reports of trials that it does not train, such as 1; this is skipped"
    ]
    study.close()


def test_a_job_lost_under_an_earlier_controller_is_replaced_by_another(tmp_path: Path) -> None:
    """What the lost one still writes to its events is not read."""
    first = open_study(tmp_path, Lease())
    attempt = planned(first)
    attempt = first.start_attempt(attempt.id, "r000-batch-000-0", {"service": "debug", "job_id": "r000-batch-000-0"})
    second = open_study(tmp_path, Lease(take_over=True))
    assert follow(second, attempt, tmp_path, []).job_id == "r000-batch-000-0-g1"
    for study in (first, second):
        study.close()


def test_a_job_starts_when_it_is_submitted_not_when_that_is_recorded(tmp_path: Path) -> None:
    study = open_study(tmp_path)
    service = DebugService(DebugServiceConfig(), tmp_path / "root", f"{__name__}:run_hostile_job")
    submitted: list[datetime] = []

    def make_spec(job_id: str) -> JobSpec:
        submitted.append(datetime.now(UTC))
        members = [MemberSpec(trial=MEMBER, architecture=study.trial(MEMBER).architecture, seed=0)]
        return JobSpec.of_search(study.config, job_id, study.config.evaluator.data, members)

    ended = AttemptFollower(study, service, threading.Event()).follow(planned(study), make_spec, lambda event: None)
    assert ended.started_at is not None and ended.started_at <= submitted[0]
    study.close()


def test_the_end_of_a_process_is_forgotten_when_the_job_starts_again(tmp_path: Path) -> None:
    """A paused job has written that it ended; resumed, it appends to the same events, and may crash."""
    study = open_study(tmp_path)
    attempt, reported = planned(study), _Reported()
    service = DebugService(DebugServiceConfig(), tmp_path / "root")
    follower = AttemptFollower(study, service, threading.Event())
    started, ended = Started(resumed={MEMBER: 0}).model_dump_json(), Ended(preempted=True).model_dump_json()
    follower._take(attempt, [started, ended], reported)
    assert reported.ended is not None
    follower._take(attempt, [started], reported)
    assert reported.ended is None
    study.close()


def test_a_job_that_runs_within_a_look_at_it_ends_soon_after_the_search_is_to_stop(tmp_path: Path) -> None:
    """Its attempt is left for the next run, and no further job begins."""
    study = open_study(tmp_path)
    attempt, stop = planned(study), threading.Event()
    service = DebugService(DebugServiceConfig(), tmp_path / "root", f"{__name__}:run_job_that_waits")
    members = [MemberSpec(trial=MEMBER, architecture=study.trial(MEMBER).architecture, seed=0)]

    def make_spec(job_id: str) -> JobSpec:
        return JobSpec.of_search(study.config, job_id, study.config.evaluator.data, members)

    def stop_once_it_runs() -> None:
        LOOKED.wait(20)
        waiting.append(service.submit(make_spec("waiting")))
        stop.set()

    waiting: list[JobHandle] = []
    interrupts = threading.Thread(target=stop_once_it_runs)
    interrupts.start()
    with pytest.raises(InterruptedSearchError):
        AttemptFollower(study, service, stop).follow(attempt, make_spec, lambda event: None)
    interrupts.join()
    left = study.attempt(attempt.id)
    assert (left.state, left.failure) == (AttemptState.RUNNING, None)
    assert service.status(JobHandle.model_validate(left.handle)).status is JobStatus.CANCELLED
    with pytest.raises(InterruptedSearchError):
        AttemptFollower(study, service, stop).follow(study.batches(0)[1], make_spec, lambda event: None)
    assert [handle.job_id for handle in service.list()] == ["waiting", "r000-batch-001-0"]
    service.cleanup()
    study.close()
