"""Clusters that refuse jobs, keep them waiting or don't answer: what was submitted can be ended, and is."""

from collections.abc import Callable
from pathlib import Path

import pytest

from nasflow.errors import ServiceError
from nasflow.testing.training_service import script
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.cluster import base, gone, long_waits
from nasflow.training_service.cluster.base import ClusterFullError
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.seen import Seen
from tests.training_service.cluster.scripted import PENDING, RUNNING, Scripted

REFUSAL = ServiceError("training_service: the cluster refuses such jobs")


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    for module in (base, gone):
        monkeypatch.setattr(module, "LOOK", 0.01)
    return Scripted(tmp_path)


def run_of(service: Scripted, handle: JobHandle) -> Run:
    run = service._records.run(handle.job_id)
    assert run is not None
    return run


def statuses(service: Scripted, *job_ids: str) -> list[JobStatus | None]:
    outcomes = [service._records.outcome(job_id) for job_id in job_ids]
    return [outcome.status if outcome else None for outcome in outcomes]


def same(service: Scripted) -> Scripted:
    return service


def next_controller(service: Scripted) -> Scripted:
    """As `nasflow cleanup` opens it."""
    other = Scripted(service._root)
    other.there, other.refusal = service.there, service.refusal
    return other


@pytest.mark.parametrize("opened", [same, next_controller])
def test_jobs_end_while_the_cluster_refuses_others(service: Scripted, opened: Callable[[Scripted], Scripted]) -> None:
    """One runs, one was refused, and the others wait for a slot."""
    slots, service._slots = service._slots, service._slots[:1]
    jobs = ["runs", "refused", "waits", "also-waits"]
    for job in jobs:
        service.submit(script(job))
    service._slots, service.refusal = slots[:2], REFUSAL
    with pytest.raises(ServiceError, match="refuses such jobs"):
        service.prepare()
    service = opened(service)
    assert [handle.job_id for handle in service.list()] == jobs
    service.cancel(JobHandle(service="scripted", job_id="refused"))
    assert statuses(service, "refused", "runs") == [JobStatus.CANCELLED, None]
    service.cleanup()
    assert statuses(service, *jobs) == [JobStatus.CANCELLED] * 4
    assert not [seen for seen in service.there.values() if not seen.status.finished]
    assert not service._records.dir.exists()


def test_jobs_end_after_three_that_could_not_begin(service: Scripted) -> None:
    waiting = service.submit(script("waits"))
    for number in range(3):
        handle = service.submit(script(f"job-{number}"))
        run = run_of(service, handle)
        run.end(JobState(status=JobStatus.LOST, began=False, reason="no Python there"))
        service.there[run.name] = Seen(JobStatus.EXITED)
        service.prepare()
        assert service.status(handle).reason == "no Python there"
    with pytest.raises(ServiceError, match="3 jobs in a row ended on their nodes"):
        service.submit(script("next"))
    service.cancel(waiting)
    service.cleanup()
    assert statuses(service, "waits", "next") == [JobStatus.CANCELLED] * 2


NEVER_BEGAN = Seen(JobStatus.LOST, "its image can't be pulled", ran=False)


def submit_four_and_lose_them(service: Scripted) -> None:
    for number in range(4):
        service.submit(script(f"job-{len(service.there)}-{number}"))
    service.there.update(dict.fromkeys(service.there, NEVER_BEGAN))


def test_jobs_end_after_three_that_the_cluster_ended_before_they_began(service: Scripted) -> None:
    """One after the other: what ends all that wait at once counts once."""
    for _ in range(3):
        submit_four_and_lose_them(service)
        service.prepare()
        assert service._records.taken() == {}
    said = "3 jobs in a row ended in the cluster before nasflow began there; of the last: its image can't be pulled$"
    with pytest.raises(ServiceError, match=said):
        service.submit(script("next"))


def test_jobs_that_were_lost_at_once_before_they_began_are_no_mistake(service: Scripted) -> None:
    """Also in the eyes of a controller that begins after that."""
    submit_four_and_lose_them(service)
    service = next_controller(service)
    service.prepare()
    assert service._records.taken() == {}
    service.submit(script("next"))


def lose_one_after_the_other(service: Scripted, jobs: int, seen: Seen = NEVER_BEGAN) -> None:
    for _ in range(jobs):
        handle = service.submit(script(f"job-{len(service.there)}"))
        service.there[run_of(service, handle).name] = seen
        service.prepare()
        assert service.status(handle).status is JobStatus.LOST


def test_jobs_that_are_lost_before_they_began_end_no_search_while_another_runs(service: Scripted) -> None:
    """It would end that one, too; and one that has run says that jobs can begin."""
    lose_one_after_the_other(service, 2)
    runs = run_of(service, service.submit(script("runs")))
    runs.file("began").touch()
    lose_one_after_the_other(service, 3)
    service.there[runs.name] = Seen(JobStatus.LOST, "its node failed")
    runs.end(JobState(status=JobStatus.LOST, reason="its node failed"))
    service.prepare()
    assert statuses(service, "runs") == [JobStatus.LOST]
    lose_one_after_the_other(service, 2)
    service.submit(script("next"))


def test_jobs_that_reached_the_time_limit_before_they_began_are_no_mistake(service: Scripted) -> None:
    lose_one_after_the_other(service, 3, Seen(JobStatus.LOST, "its time is over", ran=False, overtime=True))
    service.submit(script("next"))


def test_jobs_that_were_cancelled_before_they_began_are_no_mistake(
    service: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "_withdraw", lambda names: service.there.update(dict.fromkeys(names, NEVER_BEGAN)))
    for number in range(4):
        handle = service.submit(script(f"job-{number}"))
        service.cancel(handle)
        assert service.status(handle).status is JobStatus.CANCELLED


def test_a_job_that_reached_the_time_limit_of_its_cluster_has_had_its_whole_time(service: Scripted) -> None:
    handle = service.submit(script("job"))
    service.there[run_of(service, handle).name] = Seen(JobStatus.LOST, "its time is over", ran=False, overtime=True)
    service.prepare()
    state = service.status(handle)
    assert (state.status, state.limit, state.reason) == (JobStatus.LOST, "job", "its time is over")


def test_a_clean_up_does_not_wait_for_what_a_cluster_does_after_the_end_of_a_job(
    service: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as an epilog; what has not begun, as a second submission of the same run, is waited for."""
    monkeypatch.setattr(gone, "GRACE", 0.02)
    monkeypatch.setattr(gone, "ACTS_WITHIN", 0.2)
    handle = service.submit(script("job"))
    run = run_of(service, handle)
    run.end(JobState(status=JobStatus.EXITED, exit_code=0))
    service.there[run.name], service.obeys = RUNNING, False
    service.cleanup()
    service.there[run.name] = PENDING
    with pytest.raises(ServiceError, match="does not end its jobs"):
        service.cleanup()


def test_a_cluster_that_is_silent_for_a_moment_is_asked_again_at_the_end(service: Scripted) -> None:
    handle = service.submit(script("job"))
    service.silent = 2
    service.cancel(handle)
    service.silent = 3
    service.cleanup()
    assert service.looks >= 6
    assert not service._records.dir.exists()


@pytest.mark.parametrize("silent", [True, False])
def test_a_cluster_that_ends_nothing_is_an_error_in_the_end(
    service: Scripted, monkeypatch: pytest.MonkeyPatch, silent: bool
) -> None:
    monkeypatch.setattr(gone, "LOOK", 0.05)
    monkeypatch.setattr(gone, "ACTS_WITHIN", 0.3)
    service.there["nasflow-left-over"] = RUNNING
    service.obeys, service.silent = False, float("inf") if silent else 0
    said = "does not answer" if silent else "does not end its jobs nasflow-left-over"
    with pytest.raises(ServiceError, match=rf"^training_service: scripted {said}; run `nasflow cleanup` later"):
        service.cleanup()
    assert 3 <= service.looks <= 9  # and not as often as files


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.message for record in caplog.records]


def test_it_says_once_why_jobs_wait_for_long(
    service: Scripted, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(3):
        service.new = Seen(JobStatus.PENDING, f"job {number} waits: Priority")
        service.submit(script(f"job-{number}"))
    run_of(service, JobHandle(service="scripted", job_id="job-2")).file("began").touch()
    service.prepare()
    assert warnings(caplog) == [], "not at once"
    monkeypatch.setattr(long_waits, "_LONG", 0.0)
    for _ in range(3):
        service.prepare()
    assert warnings(caplog) == ["jobs job-0, job-1 wait, the first because: job 0 waits: Priority"]
    run = run_of(service, JobHandle(service="scripted", job_id="job-1"))
    for number in range(3):
        service.there[run.name] = Seen(JobStatus.PENDING, f"{number} nodes have so many GPUs")
        service.prepare()
    assert warnings(caplog)[1:] == ["job job-1 waits: 0 nodes have so many GPUs"]


def test_a_full_cluster_is_said_once_and_waited_for(service: Scripted, caplog: pytest.LogCaptureFixture) -> None:
    service.refusal = ClusterFullError("training_service: the limit is reached")
    handles = [service.submit(script(f"job-{number}")) for number in range(2)]
    for _ in range(3):
        service.prepare()
        assert [service.status(handle).status for handle in handles] == [JobStatus.PENDING] * 2
    assert warnings(caplog) == ["training_service: the limit is reached; submitted jobs continue, others wait"]
    service.refusal = None
    service.prepare()
    assert len(service.there) == 2
    service.refusal = ClusterFullError("training_service: the limit is reached")
    service.submit(script("job-3"))
    assert list(service.there.values()) == [PENDING] * 2
