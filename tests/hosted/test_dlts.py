"""The DLTS service keeps the contract, and its own promises, on an emulator of the service."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.config.services.hosted.dlts import DltsServiceConfig
from nasflow.errors import ServiceError
from nasflow.testing.training_service import (
    TrainingServiceContract,
    finish,
    script,
)
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.runs import name_prefix
from nasflow.training_service.hosted.dlts import DltsService, _seen
from tests.handful import handful
from tests.hosted import promises
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


@handful
@pytest.mark.long
class TestDltsService(TrainingServiceContract):
    """The rest: TestOpenpaiService, another hosted service, and TestSharedFolder."""

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
    service = make(root, cpus_per_job=2, extra={"mountpoints": [{"containerPath": "/data"}]})
    promises.jobs_have_their_environment(service, monkeypatch, ["DLTS_PASSWORD"])
    job = submitted(dlts)
    assert (job["team"], job["vcName"], job["userName"]) == ("vision", "vision", "ada@example.com")
    assert (job["gpuType"], job["resourcegpu"], job["mountpoints"]) == ("P40", 0, [{"containerPath": "/data"}])


def test_a_storage_with_secrets_that_jobs_would_show_is_refused(root):
    storage = {"url": "s3://bucket", "options": {"key": "ada", "secret": "hush"}}
    promises.a_storage_with_secrets_that_jobs_would_show_is_refused(make, root, storage)


# --- how jobs end -------------------------------------------------------------------------------------------------


def test_what_kills_a_job_from_outside_loses_it(root, dlts):
    state = promises.what_stops_a_job_from_outside_loses_it(make(root), dlts)
    assert state.reason == "DLTS's job was killed there"


def test_a_job_that_was_deleted_there_is_lost(root, dlts, monkeypatch):
    promises.a_job_that_was_deleted_there_is_lost(make(root), dlts, monkeypatch)


def test_a_state_that_is_not_known_is_no_end(root, dlts):
    says = [{"jobStatus": state} for state in ("unknown", "reborn", None, 7)]
    promises.a_state_that_is_not_known_is_no_end(make(root), dlts, says)


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
    said = r"3 jobs in a row ended on their nodes before nasflow began there"
    reason = "DLTS's job ended as failed"
    promises.jobs_that_can_not_begin_are_an_error_in_the_end(make, root, monkeypatch, said, reason)


# --- a service that misbehaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["listed", "twice"])
def test_a_job_whose_answer_was_lost_runs_once(root, dlts, late):
    prefix = name_prefix(root.resolve())

    def submissions() -> int:
        return len([job for job in dlts.jobs.values() if dlts.name(job).startswith(prefix)])

    hidden = [Fault("GET", "/jobs$", body=b"[]", times=1e9)] if late else []
    lost = Fault("POST", lost=True)
    promises.a_job_whose_answer_was_lost_runs_once(make(root), dlts, lost, hidden, submissions)


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
    said = r"training_service\.url: DLTS at http:\S+ does not answer"
    promises.a_service_out_of_order_is_waited_for(make(root), dlts, fault, said)


def test_a_refusal_with_status_200_is_said(root, dlts):
    said = r"DLTS refuses such jobs; .*larger quota \(Cannot create job! quota\)"
    promises.a_quota_that_is_full_is_said(make, dlts, root, said)


def test_a_password_that_expires_is_said_and_can_be_renewed(root, dlts, monkeypatch):
    promises.a_secret_that_expires_is_said_and_can_be_renewed(
        make(root),
        lambda: setattr(dlts, "password", "renewed"),
        lambda: monkeypatch.setenv("DLTS_PASSWORD", "renewed"),
        r"training_service\.password: DLTS does not take it for 'ada@example\.com'",
    )


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
    promises.a_secret_that_can_not_be_sent_is_refused_unread(make, root, monkeypatch, "DLTS_PASSWORD", "password")


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
