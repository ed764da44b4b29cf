"""What every hosted service promises besides the contract, tried on its emulator. Each service's tests call these."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from nasflow.errors import ConfigError, ServiceError
from nasflow.system.process_id import process_id
from nasflow.testing.training_service import await_status, epochs, finish, numbers, script, until
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.cluster import base
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.hosted.base import HostedService
from nasflow.training_service.hosted.http_client import HttpClient
from tests.hosted.emulator import Emulator, Fault

Make = Callable[..., HostedService]


# --- what jobs get ------------------------------------------------------------------------------------------------


def jobs_have_their_environment(service: HostedService, monkeypatch, secrets: Sequence[str]) -> None:
    """That of a job of two CPUs, and nothing of this process."""
    monkeypatch.setenv("PGPASSWORD", "hush")
    handle = service.submit(script("job", ["report", "report.json"]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    environment = json.loads(service.fetch("jobs/job/report.json").read_text())["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["MALLOC_MMAP_MAX_"]) == ("2", "0")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"PGPASSWORD", *secrets} & set(environment)


def a_storage_with_secrets_that_jobs_would_show_is_refused(make: Make, root: Path, storage: Mapping[str, Any]) -> None:
    service = make(root, storage=storage)
    said = rf"storage\.options.*{service.kind} has no means to give jobs a secret"
    with pytest.raises(ServiceError, match=said) as refused:
        service.validate()
    assert "hush" not in str(refused.value)


# --- how jobs end -------------------------------------------------------------------------------------------------


def what_stops_a_job_from_outside_loses_it(service: HostedService, emulator: Emulator) -> JobState:
    """With all of its processes. Returns the job's state."""
    handle = service.submit(script("job", ["epoch", 1], ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    emulator.job("job").stop()
    state = await_status(service, handle, JobStatus.LOST)
    assert not any(process_id(pid) for pid in pids)
    return state


def a_job_that_was_deleted_there_is_lost(service: HostedService, emulator: Emulator, monkeypatch) -> None:
    monkeypatch.setattr(base, "_LAST_WORD", 0.5)
    handle = service.submit(script("job", ["wait", "never"]))
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    gone = emulator.job("job")
    gone.container.kill()
    for job_id in [job_id for job_id, job in emulator.jobs.items() if job is gone]:
        del emulator.jobs[job_id]
    state = await_status(service, handle, JobStatus.LOST)
    assert state.reason == f"{service.kind} no longer knows the job"


def a_state_that_is_not_known_is_no_end(
    service: HostedService, emulator: Emulator, says: Sequence[dict[str, Any]]
) -> None:
    """`says` is what the service says of the job, one after the other."""
    handle = _begun(service)
    for each in says:
        emulator.job("job").says = each
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
    emulator.job("job").says = {}
    _goes_on(service, handle)


def memory_that_ran_out_is_the_jobs_fault(
    service: HostedService, emulator: Emulator, says: Mapping[str, Any]
) -> JobState:
    handle = service.submit(script("job", ["wait", "never"]))
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    emulator.job("job").container.kill()
    emulator.job("job").says = dict(says)
    state = finish(service, handle)
    assert (state.status, state.signal, state.oom_kills) == (JobStatus.EXITED, 9, 1)
    return state


def jobs_that_wait_say_so_and_can_be_cancelled(service: HostedService, emulator: Emulator, reason: str) -> None:
    emulator.places = 0
    handle = service.submit(script("job"))
    state = until(lambda: s if (s := service.status(handle)).reason else None, "reason for waiting")
    assert (state.status, state.reason) == (JobStatus.PENDING, reason)
    service.cancel(handle)
    assert service.status(handle).status is JobStatus.CANCELLED
    assert numbers(service, "jobs/job/runs") == []


def jobs_that_can_not_begin_are_an_error_in_the_end(
    make: Make, root: Path, monkeypatch, said: str, reason: str
) -> None:
    """`said` is found in the error; `reason` matches the whole reason of each job."""
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    service = make(root, python="/no/such/python")
    with pytest.raises(ServiceError, match=said):
        for _ in range(4):
            state = finish(service, service.submit(script("job")))
            assert state.status is JobStatus.LOST
            assert re.fullmatch(reason, state.reason)


# --- a service that misbehaves ------------------------------------------------------------------------------------


def a_job_whose_answer_was_lost_runs_once(
    service: HostedService,
    emulator: Emulator,
    lost: Fault,
    late: Sequence[Fault],
    submissions: Callable[[], int],
) -> None:
    """It is found; with faults that hide it (`late`), it is submitted again, and only one of the two begins."""
    service.prepare()
    emulator.faults = [lost]
    handle = service.submit(script("job", ["wait", "go"]))
    if late:
        emulator.faults = list(late)
        until(lambda: service.status(handle) and submissions() == 2, "second submission")
        emulator.faults = []
    await_status(service, handle, JobStatus.RUNNING)
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    assert submissions() == 1 + bool(late)
    for _ in range(3):
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
    _goes_on(service, handle)
    assert len(numbers(service, "jobs/job/runs")) == 1


def a_service_out_of_order_is_waited_for(service: HostedService, emulator: Emulator, fault: Fault, said: str) -> None:
    """What runs goes on and its end is seen; what waits begins when the service is back. `validate` raises `said`."""
    handle = _begun(service, ["epoch", 2])
    client = getattr(service, "_client", None)
    if isinstance(client, HttpClient):
        client._seconds = client._client.timeout = 0.5
    emulator.faults = [Fault(**vars(fault))]
    service.prepare()
    assert service.status(handle).status is JobStatus.RUNNING
    _goes_on(service, handle)
    waiting = service.submit(script("next"))
    assert not service.status(waiting).status.finished
    with pytest.raises(ClusterSilentError, match=said):
        service.validate()
    emulator.faults = []
    if isinstance(client, HttpClient):
        service._client = None  # with one that is patient again
    assert finish(service, waiting).exit_code == 0


def a_quota_that_is_full_is_said(make: Make, emulator: Any, root: Path, said: str) -> None:
    emulator.quota = 0
    with pytest.raises(ServiceError, match=said):
        make(root).submit(script("job"))
    emulator.quota = 10**6
    assert finish(make(root), make(root).submit(script("job"))).exit_code == 0


def a_secret_that_expires_is_said_and_can_be_renewed(
    service: HostedService, expire: Callable[[], None], renew: Callable[[], None], said: str
) -> None:
    handle = _begun(service)
    expire()
    with pytest.raises(ServiceError, match=said):
        service.prepare()
    renew()
    service.prepare()
    _goes_on(service, handle)


def a_secret_that_can_not_be_sent_is_refused_unread(
    make: Make, root: Path, monkeypatch, variable: str, key: str
) -> None:
    monkeypatch.setenv(variable, "hush\n")
    with pytest.raises(ConfigError, match=rf"^training_service\.{key}: this secret is empty, or has sp") as refused:
        make(root).validate()
    assert "hush" not in str(refused.value)


def _begun(service: HostedService, *then: Sequence[Any]) -> JobHandle:
    """A job that has ended its first epoch, and waits for the file `go`."""
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], *then))
    until(lambda: epochs(service, handle), "first epoch")
    return handle


def _goes_on(service: HostedService, handle: JobHandle) -> None:
    (service._root / "go").touch()
    assert finish(service, handle).exit_code == 0
