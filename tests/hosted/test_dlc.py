"""The PAI-DLC service keeps the contract, and its own promises, on an emulator of the service."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.config.services.dlc import DlcServiceConfig
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
from tests.hosted.emulator import Fault

pytest.importorskip("alibabacloud_pai_dlc20201203", reason="needs PAI-DLC's SDK: install nasflow[dlc]")

from alibabacloud_pai_dlc20201203.models import JobItem

from nasflow.training_service.hosted.dlc import DlcService, _seen
from tests.hosted.dlc import Dlc

pytestmark = pytest.mark.long
SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
URL = "NASFLOW_TEST_DLC"
KEYS = {"DLC_ID": "LTAI5t", "DLC_SECRET": "5f4d/cc3b+5aa="}


@pytest.fixture(scope="session", autouse=True)
def service_of_all() -> Iterator[Dlc]:
    with Dlc(*KEYS.values()).running() as dlc, pytest.MonkeyPatch.context() as patch:
        assert isinstance(dlc, Dlc)
        for name, value in {URL: dlc.url, **KEYS}.items():
            patch.setenv(name, value)
        yield dlc


@pytest.fixture
def dlc(service_of_all: Dlc) -> Iterator[Dlc]:
    yield service_of_all
    service_of_all.places, service_of_all.quota = 8, 10**6


def make(root: Path, slots: int = 1, **options) -> DlcService:
    known = {"endpoint": os.environ[URL], "region": "cn-hangzhou", "workspace_id": "77", "image": "i:1"}
    known |= {"access_key_id": {"env": "DLC_ID"}, "access_key_secret": {"env": "DLC_SECRET"}}
    known |= {"python": sys.executable, "poll_seconds": 0.3, "memory_gb": 1, "max_jobs": slots}
    return DlcService(DlcServiceConfig(**(known | options)), root, runner=SCRIPTED)


@pytest.fixture
def root(tmp_path: Path, dlc: Dlc) -> Iterator[Path]:
    folder = tmp_path / "it's a $(root) 100%d"
    yield folder
    dlc.faults.clear()
    dlc.keys = dict([KEYS.values()])
    make(folder).cleanup()


class TestDlcService(TrainingServiceContract):
    factory = f"{__file__}:make"

    @pytest.fixture(autouse=True)
    def cluster(self, dlc):
        self.dlc = dlc

    def lose(self, service, handle):
        """Its node fails."""
        self.dlc.job(handle.job_id).container.kill()


def submitted(dlc: Dlc) -> dict:
    return json.loads(next(each.body for each in reversed(dlc.requests) if each.method == "POST"))


# --- what is submitted --------------------------------------------------------------------------------------------


def test_what_is_submitted(root, dlc, monkeypatch):
    monkeypatch.setenv("PGPASSWORD", "hush")
    extra = {"DataSources": [{"DataSourceId": "d-1", "MountPath": "/mnt"}], "Priority": 3}
    service = make(root, cpus_per_job=2, resource_id="quota-1", extra=extra)
    handle = service.submit(script("job", ["report", "report.json"]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    environment = json.loads(service.fetch("jobs/job/report.json").read_text())["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["MALLOC_MMAP_MAX_"]) == ("2", "0")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert not {"PGPASSWORD", *KEYS} & set(environment)
    job = submitted(dlc)
    assert (job["JobType"], job["WorkspaceId"], job["ResourceId"]) == ("PyTorchJob", "77", "quota-1")
    assert (job["DataSources"], job["Priority"]) == (extra["DataSources"], 3)
    (task,) = job["JobSpecs"]
    assert (task["PodCount"], task["Image"]) == (1, "i:1")
    assert task["ResourceConfig"] == {"CPU": "2", "Memory": "1Gi"}
    make(root, ecs_spec="ecs.g6.large").submit(script("other"))
    (task,) = submitted(dlc)["JobSpecs"]
    assert task["EcsSpec"] == "ecs.g6.large" and "ResourceConfig" not in task


def test_a_storage_with_secrets_that_jobs_would_show_is_refused(root):
    storage = {"url": "s3://bucket", "options": {"key": "ada", "secret": "hush"}}
    with pytest.raises(ServiceError, match=r"storage\.options.*dlc has no means to give jobs a secret") as refused:
        make(root, storage=storage).validate()
    assert "hush" not in str(refused.value)


# --- how jobs end -------------------------------------------------------------------------------------------------


def test_what_stops_a_job_from_outside_loses_it(root, dlc):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["spawn", "daemon"], ["wait", "never"]))
    pids = until(lambda: numbers(service, "jobs/job/pids"), "daemon") + numbers(service, "jobs/job/runs")
    dlc.job("job").stop()
    state = await_status(service, handle, JobStatus.LOST)
    assert state.reason == "DLC's job is Stopped"
    assert not any(process_id(pid) for pid in pids)


def test_a_job_that_was_deleted_there_is_lost(root, dlc, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.5)
    service = make(root)
    handle = service.submit(script("job", ["wait", "never"]))
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    gone = dlc.job("job")
    gone.container.kill()
    for job_id in [job_id for job_id, job in dlc.jobs.items() if job is gone]:
        del dlc.jobs[job_id]
    state = await_status(service, handle, JobStatus.LOST)
    assert state.reason == "dlc no longer knows the job"


def test_a_state_that_is_not_known_is_no_end(root, dlc):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch")
    for state in ("Unknown", "Reborn", None, 7):
        dlc.job("job").says = {"Status": state}
        service.prepare()
        assert service.status(handle).status is JobStatus.RUNNING
    dlc.job("job").says = {}
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0


@pytest.mark.parametrize(
    ("state", "status"),
    [
        *[(state, JobStatus.PENDING) for state in ("Creating", "Queuing", "Bidding", "EnvPreparing", "SanityChecking")],
        *[(state, JobStatus.RUNNING) for state in ("Running", "Restarting", "Stopping", "Reborn", None)],
        *[(state, JobStatus.EXITED) for state in ("Succeeded", "Failed", "SucceededReserving", "FailedReserving")],
        ("Stopped", JobStatus.LOST),
    ],
)
def test_states_of_dlc(state, status):
    seen = _seen(JobItem(status=state, reason_code="Why", reason_message="so"))
    assert (seen.status, seen.out_of_memory) == (status, False)
    assert str(state) in seen.reason and "Why so" in seen.reason


def test_dlc_ended_a_job_for_want_of_memory(root, dlc):
    service = make(root)
    handle = service.submit(script("job", ["wait", "never"]))
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    dlc.job("job").container.kill()
    dlc.job("job").says = {"Status": "Failed", "ReasonCode": "PodFailed", "ReasonMessage": "worker-0: OOMKilled"}
    state = finish(service, handle)
    assert (state.status, state.signal, state.oom_kills) == (JobStatus.EXITED, 9, 1)


def test_jobs_that_can_not_begin_are_an_error_in_the_end(root, dlc, monkeypatch):
    monkeypatch.setattr(base, "_LAST_WORD", 0.1)
    service = make(root, python="/no/such/python")
    with pytest.raises(ServiceError, match=r"3 jobs in a row ended on their nodes before nasflow began there"):
        for _ in range(4):
            state = finish(service, service.submit(script("job")))
            assert (state.status, state.reason) == (JobStatus.LOST, "DLC's job is Failed")


# --- a service that misbehaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["listed", "twice"])
def test_a_job_whose_answer_was_lost_runs_once(root, dlc, late):
    """It is found in the list; if that is late, it is submitted again, and only one of the two begins."""
    service = make(root)
    service.prepare()
    prefix = name_prefix(root.resolve())

    def submitted() -> int:
        return len([job for job in dlc.jobs.values() if dlc.name(job).startswith(prefix)])

    dlc.faults = [Fault("POST", lost=True)]
    handle = service.submit(script("job", ["wait", "go"]))
    if late:
        dlc.faults = [Fault("GET", body=b'{"Jobs": [], "TotalCount": 0, "RequestId": "r"}', times=1e9)]
        until(lambda: service.status(handle) and submitted() == 2, "second submission")
        dlc.faults = []
    await_status(service, handle, JobStatus.RUNNING)
    until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    assert submitted() == 1 + late
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert len(numbers(service, "jobs/job/runs")) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(code=503, body=b'{"Code": "Down", "Message": "later"}', times=1e9),
        Fault(code=429, body=b'{"Code": "Throttling", "Message": "later"}', times=1e9),
        Fault(slow=3.0, times=1e9),
        Fault(lost=True, times=1e9),
        Fault(body=b"<html>log in</html>", times=1e9),
        Fault("GET", body=b'{"text": 1}', times=1e9),
    ],
    ids=["503", "429", "slow", "broken", "page", "shape"],
)
def test_a_service_out_of_order_is_waited_for(root, dlc, monkeypatch, fault):
    """What runs goes on and its end is seen; what waits begins when the service is back."""
    monkeypatch.setattr("nasflow.training_service.hosted.dlc._ANSWERS_WITHIN", 500)
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2]))
    until(lambda: epochs(service, handle), "first epoch")
    dlc.faults = [fault]
    service.prepare()
    assert service.status(handle).status is JobStatus.RUNNING
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
    waiting = service.submit(script("next"))
    assert not service.status(waiting).status.finished
    with pytest.raises(ClusterSilentError, match=r"training_service: PAI-DLC .*answer"):
        service.validate()
    dlc.faults = []
    assert finish(service, waiting).exit_code == 0


def test_a_quota_that_is_full_is_said(root, dlc):
    dlc.quota = 0
    with pytest.raises(ServiceError, match=r"training_service: PAI-DLC refuses such jobs; .*HTTP 400: NoQuota"):
        make(root).submit(script("job"))
    dlc.quota = 10**6
    assert finish(make(root), make(root).submit(script("job"))).exit_code == 0


def test_keys_that_expire_are_said_and_can_be_renewed(root, dlc, monkeypatch):
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch")
    dlc.keys = {"LTAI5t": "renewed"}
    with pytest.raises(ServiceError, match=r"training_service\.access_key_secret: .*HTTP 403: SignatureDoesNotMatch"):
        service.prepare()
    monkeypatch.setenv("DLC_SECRET", "renewed")
    service.prepare()
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0


def test_validate_says_what_is_wrong(root, dlc, monkeypatch):
    make(root).validate()
    assert not root.exists()
    with pytest.raises(
        ServiceError, match=r"training_service\.workspace_id: PAI-DLC knows no workspace 78 in cn-hangzh"
    ):
        make(root, workspace_id="78").validate()
    with pytest.raises(ClusterSilentError, match=r"PAI-DLC in cn-hangzhou does not answer as it should: .*refused"):
        make(root, endpoint="http://127.0.0.1:9").validate()
    monkeypatch.setenv("DLC_SECRET", "hush\n")
    with pytest.raises(ConfigError, match=r"^training_service\.access_key_secret: this secret is empty") as refused:
        make(root).validate()
    assert "hush" not in str(refused.value)


def test_the_keys_are_shown_nowhere(root, dlc, caplog):
    caplog.set_level(logging.DEBUG)
    service = make(root)
    dlc.faults = [Fault(code=500, body=json.dumps({"Code": "X", "Message": f"no {KEYS['DLC_SECRET']}"}).encode())]
    service.prepare()
    handle = service.submit(script("job"))
    assert finish(service, handle).exit_code == 0
    shown = caplog.text + repr(service._config) + service._config.model_dump_json()
    assert "no ***" in shown
    assert KEYS["DLC_SECRET"] not in shown
    assert not [f for f in root.rglob("*") if f.is_file() and KEYS["DLC_SECRET"] in f.read_text(errors="replace")]
