"""The DLTS service keeps the contract, and its own promises, on an emulator of the service."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.config.services.dlts import DltsServiceConfig
from nasflow.errors import ConfigError, ServiceError
from nasflow.process_id import process_id
from nasflow.testing.training_service import (
    TrainingServiceContract,
    await_status,
    epochs,
    finish,
    numbers,
    script,
    until,
)
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster import base
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.runs import name_prefix
from nasflow.training_service.hosted.dlts import DltsService, _seen
from tests.hosted.dlts import Dlts
from tests.hosted.emulator import Fault

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
URL = "NASFLOW_TEST_DLTS"
PASSWORD = "5f4d/cc3b+5aa="


@pytest.fixture(scope="session", autouse=True)
def service_of_all() -> Iterator[Dlts]:
    with Dlts(PASSWORD).running() as dlts, pytest.MonkeyPatch.context() as patch:
        assert isinstance(dlts, Dlts)
        patch.setenv(URL, dlts.url)
        patch.setenv("DLTS_PASSWORD", PASSWORD)
        yield dlts


@pytest.fixture
def dlts(service_of_all: Dlts) -> Iterator[Dlts]:
    yield service_of_all
    service_of_all.places, service_of_all.quota = 8, 10**6


def make(root: Path, slots: int = 1, **options) -> DltsService:
    known = {"url": os.environ[URL], "email": "ada@example.com", "password": {"env": "DLTS_PASSWORD"}, "image": "i:1"}
    known |= {"team": "vision", "python": sys.executable, "poll_seconds": 0.3, "memory_gb": 1, "max_jobs": slots}
    return DltsService(DltsServiceConfig(**(known | options)), root, runner=SCRIPTED)


@pytest.fixture
def root(tmp_path: Path, dlts: Dlts) -> Iterator[Path]:
    folder = tmp_path / "it's a $(root) 100%d"
    yield folder
    dlts.faults.clear()
    dlts.password = PASSWORD
    make(folder).cleanup()


@pytest.mark.long
class TestDltsService(TrainingServiceContract):
    factory = f"{__file__}:make"

    @pytest.fixture(autouse=True)
    def cluster(self, dlts):
        self.dlts = dlts

    def lose(self, service, handle):
        """Its node fails; DLTS calls that an error."""
        job = self.dlts.job(handle.job_id)
        job.container.kill()
        job.says = {"jobStatus": "error", "errorMsg": "node lost"}


def submitted(dlts: Dlts) -> dict:
    return json.loads(next(each.body for each in reversed(dlts.requests) if each.method == "POST"))


# --- what is submitted --------------------------------------------------------------------------------------------


def test_what_is_submitted(root, dlts, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "hush")
    service = make(root, cpus_per_job=2, extra={"mountpoints": [{"containerPath": "/data"}]})
    handle = service.submit(script("job", ["report", "report.json"]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    environment = json.loads(service.fetch("jobs/job/report.json").read_text())["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["MALLOC_MMAP_MAX_"]) == ("2", "0")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"PGPASSWORD", "DLTS_PASSWORD"} & set(environment)
    job = submitted(dlts)
    assert (job["team"], job["vcName"], job["userName"]) == ("vision", "vision", "ada@example.com")
    assert (job["gpuType"], job["resourcegpu"], job["mountpoints"]) == ("P40", 0, [{"containerPath": "/data"}])


def test_a_storage_with_secrets_that_jobs_would_show_is_refused(root):
    storage = {"url": "s3://bucket", "options": {"key": "ada", "secret": "hush"}}
    with pytest.raises(ServiceError, match=r"storage\.options.*dlts has no means to give jobs a secret") as refused:
        make(root, storage=storage).validate()
    assert "hush" not in str(refused.value)


# --- how jobs end -------------------------------------------------------------------------------------------------


def test_what_kills_a_job_from_outside_loses_it(root, dlts):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    dlts.job("job").stop()
    state = await_status(service, handle, JobStatus.LOST)
    assert state.reason == "DLTS's job was killed there"
    assert not any(process_id(pid) for pid in pids)


def test_a_job_that_was_deleted_there_is_lost(root, dlts, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.5)
    service = make(root)
    handle = service.submit(script("job", ["wait", "never"]))
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    gone = dlts.job("job")
    gone.container.kill()
    for job_id in [job_id for job_id, job in dlts.jobs.items() if job is gone]:
        del dlts.jobs[job_id]
    state = await_status(service, handle, JobStatus.LOST)
    assert state.reason == "dlts no longer knows the job"


def test_a_state_that_is_not_known_is_no_end(root, dlts):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch")
    for state in ("unknown", "reborn", None, 7):
        dlts.job("job").says = {"jobStatus": state}
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
    dlts.job("job").says = {}
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("unapproved", JobStatus.PENDING),
        ("queued", JobStatus.PENDING),
        ("scheduling", JobStatus.PENDING),
        ("running", JobStatus.RUNNING),
        ("pausing", JobStatus.RUNNING),
        ("killing", JobStatus.RUNNING),
        ("finished", JobStatus.EXITED),
        ("failed", JobStatus.EXITED),
        ("error", JobStatus.EXITED),
        ("paused", JobStatus.LOST),
        ("killed", JobStatus.LOST),
    ],
)
def test_states_of_dlts(state, status):
    seen = _seen({"jobStatus": state, "errorMsg": "why"})
    assert seen.status is status
    assert state in seen.reason


def test_jobs_that_can_not_begin_are_an_error_in_the_end(root, dlts, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    service = make(root, python="/no/such/python")
    with pytest.raises(ServiceError, match=r"3 jobs in a row ended on their nodes before nasflow began there"):
        for _ in range(4):
            state = finish(service, service.submit(script("job")))
            assert (state.status, state.reason) == (JobStatus.LOST, "DLTS's job ended as failed")


# --- a service that misbehaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["listed", "twice"])
def test_a_job_whose_answer_was_lost_runs_once(root, dlts, late):
    """It is found in the list; if that is late, it is submitted again, and only one of the two begins."""
    service = make(root)
    service.prepare()
    prefix = name_prefix(root.resolve())

    def submitted() -> int:
        return len([job for job in dlts.jobs.values() if dlts.name(job).startswith(prefix)])

    dlts.faults = [Fault("POST", lost=True)]
    handle = service.submit(script("job", ["wait", "go"]))
    if late:
        dlts.faults = [Fault("GET", "/jobs$", body=b"[]", times=1e9)]
        until(lambda: service.status(handle) and submitted() == 2, "second submission")
        dlts.faults = []
    await_status(service, handle, JobStatus.RUNNING)
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    assert submitted() == 1 + late
    for _ in range(3):
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert len(numbers(service, "jobs/job/runs")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(code=502, times=1e9),
        Fault(slow=3.0, times=1e9),
        Fault(lost=True, times=1e9),
        Fault(body=b"<html>log in</html>", times=1e9),
        Fault(body=b'"text"', times=1e9),
    ],
    ids=["502", "slow", "broken", "page", "text"],
)
def test_a_service_out_of_order_is_waited_for(root, dlts, fault):
    """What runs goes on and its end is seen; what waits begins when the service is back."""
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2]))
    until(lambda: epochs(service, handle), "first epoch")
    service._client._seconds = 0.5
    service._client._client.timeout = 0.5
    dlts.faults = [fault]
    service.prepare()
    assert service.status(handle).status is JobStatus.RUNNING
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
    waiting = service.submit(script("next"))
    assert not service.status(waiting).status.finished
    with pytest.raises(ClusterSilentError, match=r"training_service\.url: DLTS at http:\S+ does not answer"):
        service.validate()
    dlts.faults = []
    service._client = None
    assert finish(service, waiting).exit_code == 0


def test_a_refusal_with_status_200_is_said(root, dlts):
    dlts.quota = 0
    with pytest.raises(ServiceError, match=r"DLTS refuses such jobs; .*larger quota \(Cannot create job! quota\)"):
        make(root).submit(script("job"))
    dlts.quota = 10**6
    assert finish(make(root), make(root).submit(script("job"))).exit_code == 0


def test_a_password_that_expires_is_said_and_can_be_renewed(root, dlts, monkeypatch):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch")
    dlts.password = "renewed"
    with pytest.raises(ServiceError, match=r"training_service\.password: DLTS does not take it for 'ada@example\.com'"):
        service.prepare()
    monkeypatch.setenv("DLTS_PASSWORD", "renewed")
    service.prepare()
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0


def test_validate_says_what_is_wrong(root, dlts, monkeypatch):
    make(root, gpu_type="V100").validate()
    assert not root.exists()
    with pytest.raises(ServiceError, match=r"gpu_type: team 'vision' has no 'K80', but P40, V100$"):
        make(root, gpu_type="K80").validate()
    for options in ({"cluster": "other"}, {"team": "sound"}, {"url": f"{dlts.url}/elsewhere"}):
        with pytest.raises(ServiceError, match=r"training_service\.cluster: the dashboard at \S+ knows no cluster"):
            make(root, **options).validate()
    with pytest.raises(ClusterSilentError, match=r"http://127\.0\.0\.1:9 does not answer as it should: .*refused"):
        make(root, url="http://127.0.0.1:9").validate()
    monkeypatch.setenv("DLTS_PASSWORD", "hush\n")
    with pytest.raises(ConfigError, match=r"^training_service\.password: this secret is empty, or has sp") as refused:
        make(root).validate()
    assert "hush" not in str(refused.value)


def test_the_password_is_shown_nowhere(root, dlts, caplog):
    """Although it is in the URL of each request."""
    caplog.set_level(logging.DEBUG)
    service = make(root)
    dlts.faults = [Fault(code=500, body=f"no {PASSWORD}".encode())]
    service.prepare()
    handle = service.submit(script("job"))
    assert finish(service, handle).exit_code == 0
    assert all(each.query["password"] == PASSWORD for each in dlts.requests[-3:])
    assert "HTTP Request: POST" in caplog.text
    shown = caplog.text + repr(service._config) + service._config.model_dump_json()
    for spelling in (PASSWORD, "5f4d%2Fcc3b", "cc3b+5aa", "cc3b%2B5aa"):
        assert spelling not in shown
        assert not [file for file in root.rglob("*") if file.is_file() and spelling in file.read_text(errors="replace")]
