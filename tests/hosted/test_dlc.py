"""The PAI-DLC service keeps the contract, and its own promises, on an emulator of the service."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.config.services.hosted.dlc import DlcServiceConfig
from nasflow.errors import ServiceError
from nasflow.testing.training_service import (
    TrainingServiceContract,
    finish,
    script,
)
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.runs import name_prefix
from tests.hosted import promises
from tests.hosted.emulator import Fault

pytest.importorskip("alibabacloud_pai_dlc20201203", reason="needs PAI-DLC's SDK: install nasflow[dlc]")

from alibabacloud_pai_dlc20201203.models import JobItem

from nasflow.training_service.hosted.dlc import DlcService, _seen
from tests.handful import handful
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


@handful
class TestDlcService(TrainingServiceContract):
    """The rest: TestOpenpaiService, another hosted service, and TestSharedFolder."""

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
    extra = {"DataSources": [{"DataSourceId": "d-1", "MountPath": "/mnt"}], "Priority": 3}
    service = make(root, cpus_per_job=2, resource_id="quota-1", extra=extra)
    promises.jobs_have_their_environment(service, monkeypatch, list(KEYS))
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
    promises.a_storage_with_secrets_that_jobs_would_show_is_refused(make, root, storage)


# --- how jobs end -------------------------------------------------------------------------------------------------


def test_what_stops_a_job_from_outside_loses_it(root, dlc):
    state = promises.what_stops_a_job_from_outside_loses_it(make(root), dlc)
    assert state.reason == "DLC's job is Stopped"


def test_a_job_that_was_deleted_there_is_lost(root, dlc, monkeypatch):
    promises.a_job_that_was_deleted_there_is_lost(make(root), dlc, monkeypatch)


def test_a_state_that_is_not_known_is_no_end(root, dlc):
    says = [{"Status": state} for state in ("Unknown", "Reborn", None, 7)]
    promises.a_state_that_is_not_known_is_no_end(make(root), dlc, says)


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
    says = {"Status": "Failed", "ReasonCode": "PodFailed", "ReasonMessage": "worker-0: OOMKilled"}
    promises.memory_that_ran_out_is_the_jobs_fault(make(root), dlc, says)


def test_jobs_that_can_not_begin_are_an_error_in_the_end(root, dlc, monkeypatch):
    said = r"3 jobs in a row ended on their nodes before nasflow began there"
    reason = "DLC's job is Failed"
    promises.jobs_that_can_not_begin_are_an_error_in_the_end(make, root, monkeypatch, said, reason)


# --- a service that misbehaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["listed", "twice"])
def test_a_job_whose_answer_was_lost_runs_once(root, dlc, late):
    prefix = name_prefix(root.resolve())

    def submissions() -> int:
        return len([job for job in dlc.jobs.values() if dlc.name(job).startswith(prefix)])

    hidden = [Fault("GET", body=b'{"Jobs": [], "TotalCount": 0, "RequestId": "r"}', times=1e9)] if late else []
    lost = Fault("POST", lost=True)
    promises.a_job_whose_answer_was_lost_runs_once(make(root), dlc, lost, hidden, submissions)


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
    monkeypatch.setattr("nasflow.training_service.hosted.dlc._ANSWERS_WITHIN", 500)
    said = r"training_service: PAI-DLC .*answer"
    promises.a_service_out_of_order_is_waited_for(make(root), dlc, fault, said)


def test_a_quota_that_is_full_is_said(root, dlc):
    said = r"training_service: PAI-DLC refuses such jobs; .*HTTP 400: NoQuota"
    promises.a_quota_that_is_full_is_said(make, dlc, root, said)


def test_keys_that_expire_are_said_and_can_be_renewed(root, dlc, monkeypatch):
    promises.a_secret_that_expires_is_said_and_can_be_renewed(
        make(root),
        lambda: setattr(dlc, "keys", {"LTAI5t": "renewed"}),
        lambda: monkeypatch.setenv("DLC_SECRET", "renewed"),
        r"training_service\.access_key_secret: .*HTTP 403: SignatureDoesNotMatch",
    )


def test_validate_says_what_is_wrong(root, dlc, monkeypatch):
    make(root).validate()
    assert not root.exists()
    with pytest.raises(
        ServiceError, match=r"training_service\.workspace_id: PAI-DLC knows no workspace 78 in cn-hangzh"
    ):
        make(root, workspace_id="78").validate()
    with pytest.raises(ClusterSilentError, match=r"PAI-DLC in cn-hangzhou does not answer as it should: .*refused"):
        make(root, endpoint="http://127.0.0.1:9").validate()
    promises.a_secret_that_can_not_be_sent_is_refused_unread(make, root, monkeypatch, "DLC_SECRET", "access_key_secret")


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
