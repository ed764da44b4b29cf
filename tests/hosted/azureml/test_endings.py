"""How jobs of Azure ML end, and what that says of them."""

import pytest

from nasflow.testing.training_service import (
    await_status,
    epochs,
    finish,
    numbers,
    script,
    until,
)
from nasflow.training_service.base import JobStatus
from nasflow.training_service.hosted.azureml import _seen
from tests.hosted import promises
from tests.hosted.azureml.service import make


def test_what_cancels_a_job_from_outside_loses_it(root, azure):
    state = promises.what_stops_a_job_from_outside_loses_it(make(root), azure)
    assert state.reason == "Azure ML's job is Canceled there"


def test_a_job_that_was_deleted_there_is_lost(root, azure, monkeypatch):
    promises.a_job_that_was_deleted_there_is_lost(make(root), azure, monkeypatch)


def test_a_job_that_azure_starts_again_is_lost_and_trains_once(root, azure):
    """As on a preempted node: the run that Azure starts again ends at once."""
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "never"]))
    until(lambda: epochs(service, handle), "first epoch")
    job = azure.job("job")
    with azure.lock:
        job.container.kill()
        job.container = None
    assert await_status(service, handle, JobStatus.LOST).reason.startswith("Azure ML's job is Completed: https://")
    assert len(numbers(service, "jobs/job/runs")) == 1


def test_a_state_that_is_not_known_is_no_end(root, azure):
    says = [{"status": state} for state in ("Unknown", "Reborn", None, 7)]
    promises.a_state_that_is_not_known_is_no_end(make(root), azure, says)


WAITING = ("NotStarted", "Scheduled", "Starting", "Provisioning", "Preparing", "Queued")
BUSY = ("Running", "Finalizing", "CancelRequested", "NotResponding", "Paused", "Unknown", "Reborn", None)


@pytest.mark.parametrize(
    ("state", "status"),
    [
        *[(state, JobStatus.PENDING) for state in WAITING],
        *[(state, JobStatus.RUNNING) for state in BUSY],
        ("Completed", JobStatus.EXITED),
        ("Failed", JobStatus.EXITED),
        ("Canceled", JobStatus.LOST),
    ],
)
def test_states_of_azure(state, status):
    seen = _seen({"properties": {"status": state}})
    assert seen.status is status
    assert str(state) in seen.reason


def test_jobs_that_wait_say_so_and_can_be_cancelled(root, azure):
    promises.jobs_that_wait_say_so_and_can_be_cancelled(make(root), azure, "Azure ML's job is Queued")


def test_ending_a_job_that_has_ended_is_well(root, azure):
    service = make(root)
    finish(service, service.submit(script("job")))
    until(lambda: not azure.job("job").alive, "end of the container")
    service._withdraw([azure.name(azure.job("job")), "nasflow-unknown"])


def test_jobs_that_can_not_begin_are_an_error_in_the_end(root, azure, monkeypatch):
    said = r"3 jobs in a row ended on their nodes before nasflow .*https://studio"
    reason = r"Azure ML's job is Failed: https://studio\.example\.com/runs/nasflow-.*"
    promises.jobs_that_can_not_begin_are_an_error_in_the_end(make, root, monkeypatch, said, reason)
