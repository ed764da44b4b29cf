"""The OpenPAI service keeps the contract, and its own promises, on an emulator of the service."""

import json
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import psutil
import pytest
import yaml

from nasflow.attempt.verdict import judge
from nasflow.config.services.hosted.openpai import OpenpaiServiceConfig
from nasflow.errors import ConfigError, ServiceError
from nasflow.testing.training_service import (
    TrainingServiceContract,
    await_status,
    finish,
    numbers,
    script,
    until,
)
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterSilentError
from nasflow.training_service.cluster.runs import name_prefix
from nasflow.training_service.hosted import http_client
from nasflow.training_service.hosted.openpai import OpenpaiService, _seen
from tests.hosted import promises
from tests.hosted.emulator import Fault
from tests.hosted.openpai import OpenPai

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
URL = "NASFLOW_TEST_OPENPAI"
TOKEN = "t0ken/with+signs=="


@pytest.fixture(scope="session", autouse=True)
def service_of_all() -> Iterator[OpenPai]:
    with OpenPai(TOKEN).running() as pai, pytest.MonkeyPatch.context() as patch:
        assert isinstance(pai, OpenPai)
        patch.setenv(URL, pai.url)
        patch.setenv("PAI_TOKEN", TOKEN)
        yield pai


@pytest.fixture
def pai(service_of_all: OpenPai) -> Iterator[OpenPai]:
    yield service_of_all
    service_of_all.faults.clear()
    service_of_all.token, service_of_all.places, service_of_all.quota = TOKEN, 8, 10**6


def make(root: Path, slots: int = 1, **options) -> OpenpaiService:
    known = {"url": os.environ[URL], "user": "ada", "token": {"env": "PAI_TOKEN"}, "image": "nasflow:1"}
    known |= {"python": sys.executable, "poll_seconds": 0.3, "memory_gb": 1, "max_jobs": slots}
    return OpenpaiService(OpenpaiServiceConfig(**(known | options)), root, runner=SCRIPTED)


@pytest.fixture
def root(tmp_path: Path, pai: OpenPai) -> Iterator[Path]:
    folder = tmp_path / "it's a $(root) 100%d"
    yield folder
    pai.faults.clear()
    pai.token = TOKEN
    make(folder).cleanup()


@pytest.mark.long
class TestOpenpaiService(TrainingServiceContract):
    factory = f"{__file__}:make"

    @pytest.fixture(autouse=True)
    def cluster(self, pai):
        self.pai = pai

    def lose(self, service, handle):
        """Its node fails, and OpenPAI starts its task again."""
        self.pai.lose_node(self.pai.job(handle.job_id))


def submitted(pai: OpenPai) -> dict:
    return yaml.safe_load(next(each.body for each in reversed(pai.requests) if each.method == "POST"))


# --- what is submitted --------------------------------------------------------------------------------------------


def test_a_job_in_the_job_protocol(root, pai, monkeypatch):
    extra = {"extras": {"storages": [{"name": "nfs"}]}, "taskRoles": {"job": {"extraContainerOptions": {"shmMB": 512}}}}
    options = {"cpus_per_job": 2, "virtual_cluster": "vision", "sku": "K80", "extra": extra}
    promises.jobs_have_their_environment(make(root, **options), monkeypatch, ["PAI_TOKEN"])
    job = submitted(pai)
    role = job["taskRoles"]["job"]
    assert role["resourcePerInstance"] == {"cpu": 2, "memoryMB": 1024, "gpu": 0}
    assert (role["extraContainerOptions"], job["defaults"]) == ({"shmMB": 512}, {"virtualCluster": "vision"})
    assert job["extras"] == {
        "hivedScheduler": {"taskRoles": {"job": {"skuType": "K80"}}},
        "storages": [{"name": "nfs"}],
    }
    assert job["prerequisites"] == [{"type": "dockerimage", "name": "image", "uri": "nasflow:1"}]
    assert job["jobRetryCount"] == role["taskRetryCount"] == 0
    assert "secrets" not in job


class Secretive(OpenpaiService):
    def _secret_environment(self):
        return {"STORAGE_KEY": "it's a $(secret) & more"}


def test_secrets_of_jobs_go_as_secrets(root, pai):
    config = make(root)._config
    service = Secretive(config, root, runner=SCRIPTED)
    handle = service.submit(script("job", ["report", "report.json"], ["wait", "go"]))
    until((root / "jobs/job/report.json").exists, "report")
    environment = json.loads((root / "jobs/job/report.json").read_text())["environment"]
    assert environment["STORAGE_KEY"] == "it's a $(secret) & more"
    job = submitted(pai)
    assert "(secret)" not in json.dumps({key: value for key, value in job.items() if key != "secrets"})
    (pid,) = numbers(service, "jobs/job/runs")
    for process in (psutil.Process(pid), *psutil.Process(pid).parents()):
        assert "(secret)" not in " ".join(process.cmdline())
    assert not [
        file
        for file in root.rglob("*")
        if file.is_file() and "(secret)" in file.read_text(errors="replace") and file.name != "report.json"
    ]
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0


# --- how jobs end -------------------------------------------------------------------------------------------------


def test_what_stops_a_job_from_outside_loses_it(root, pai):
    assert "stopped there" in promises.what_stops_a_job_from_outside_loses_it(make(root), pai).reason


def test_a_job_that_was_deleted_there_is_lost(root, pai, monkeypatch):
    promises.a_job_that_was_deleted_there_is_lost(make(root), pai, monkeypatch)


def test_openpai_ended_a_job_for_want_of_memory(root, pai):
    says = {"state": "FAILED", "appExitCode": -1200}
    state = promises.memory_that_ran_out_is_the_jobs_fault(make(root), pai, says)
    assert judge(state, None).out_of_memory


def test_a_state_that_is_not_known_is_no_end(root, pai):
    says = [{"state": state} for state in ("UNKNOWN", "REBORN", None, 7)]
    promises.a_state_that_is_not_known_is_no_end(make(root), pai, says)


@pytest.mark.parametrize(
    ("job", "status", "reason"),
    [
        ({"state": "WAITING"}, JobStatus.PENDING, "waits"),
        ({"state": "STOPPING"}, JobStatus.RUNNING, "STOPPING"),
        ({"state": "STOPPED", "appExitCode": -210}, JobStatus.LOST, "stopped there"),
        ({"state": "SUCCEEDED", "appExitCode": 0}, JobStatus.EXITED, "exit code 0"),
        ({"state": "FAILED", "appExitCode": 137}, JobStatus.EXITED, "exit code 137"),
        ({"state": "FAILED", "appExitCode": -1001}, JobStatus.LOST, "a failure of the cluster"),
        ({"state": "FAILED", "appExitCode": None}, JobStatus.EXITED, "FAILED"),
        ({}, JobStatus.RUNNING, "None"),
        ({"state": ["FAILED"]}, JobStatus.RUNNING, "FAILED"),
    ],
)
def test_states_of_openpai(job, status, reason):
    seen = _seen(job)
    assert seen.status is status
    assert reason in seen.reason


def test_jobs_that_wait_say_so_and_can_be_cancelled(root, pai):
    promises.jobs_that_wait_say_so_and_can_be_cancelled(make(root), pai, "OpenPAI's job waits for resources")


# --- a service that misbehaves ------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", [False, True], ids=["listed", "twice"])
def test_a_job_whose_answer_was_lost_runs_once(root, pai, late):
    """OpenPAI refuses the second submission."""
    prefix = name_prefix(root.resolve())

    def submissions() -> int:
        return len([each for each in pai.requests if each.method == "POST" and prefix.encode() in each.body])

    hidden = [Fault("GET", "/jobs$", body=b"[]", times=1e9)] if late else []
    lost = Fault("POST", lost=True)
    promises.a_job_whose_answer_was_lost_runs_once(make(root), pai, lost, hidden, submissions)
    assert len([job for job in pai.jobs.values() if pai.name(job).startswith(prefix)]) == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault(code=500, times=1e9),
        Fault(code=502, times=1e9, body=b"<html>" + b"x" * 10**6),
        Fault(code=429, times=1e9),
        Fault(slow=3.0, times=1e9),
        Fault(lost=True, times=1e9),
        Fault(body=b"<html>log in</html>", times=1e9),
        Fault("GET", body=b"[" * 10**5, times=1e9),
        Fault("GET", "/jobs$", body=b'{"jobs": []}', times=1e9),
    ],
    ids=["500", "502", "429", "slow", "broken", "page", "deep", "shape"],
)
def test_a_service_out_of_order_is_waited_for(root, pai, fault):
    said = r"training_service\.url: OpenPAI at http:\S+ does not answer"
    promises.a_service_out_of_order_is_waited_for(make(root), pai, fault, said)


def test_an_answer_that_is_too_long_is_none(root, pai, monkeypatch):
    monkeypatch.setattr(http_client, "_BYTES", 10_000)
    pai.faults = [Fault(body=b"x" * 20_000)]
    with pytest.raises(ClusterSilentError, match="does not answer as it should: an answer of more than"):
        make(root).validate()


def test_a_quota_that_is_full_is_said(root, pai):
    said = r"training_service\.virtual_cluster: user 'ada' may not use 'default'.*403"
    promises.a_quota_that_is_full_is_said(make, pai, root, said)


def test_a_token_that_expires_is_said_and_can_be_renewed(root, pai, monkeypatch):
    promises.a_secret_that_expires_is_said_and_can_be_renewed(
        make(root),
        lambda: setattr(pai, "token", "renewed"),
        lambda: monkeypatch.setenv("PAI_TOKEN", "renewed"),
        r"training_service\.token: OpenPAI does not take it, it may have expired",
    )


def test_validate_says_what_is_wrong(root, pai, monkeypatch):
    make(root).validate()
    assert not root.exists()
    with pytest.raises(ServiceError, match=r"virtual_cluster: OpenPAI has no .* 'fast' for this user, but default, vi"):
        make(root, virtual_cluster="fast").validate()
    with pytest.raises(ServiceError, match=r"training_service\.url: there is no OpenPAI REST server.*/rest-server"):
        make(root, url=f"http://{pai.address}").validate()
    with pytest.raises(ClusterSilentError, match=r"http://127\.0\.0\.1:9 does not answer as it should: .*refused"):
        make(root, url="http://127.0.0.1:9").validate()
    pai.faults = [Fault(code=302)]
    with pytest.raises(ServiceError, match=r"training_service\.url: \S+ redirects elsewhere"):
        make(root).validate()
    pai.faults = [Fault("POST", code=422, body=b'{"code": "X", "message": "no image"}')]
    with pytest.raises(ServiceError, match=r"OpenPAI refuses such jobs; .*\(HTTP 422: no image\)"):
        make(root).submit(script("job"))
    monkeypatch.delenv("PAI_TOKEN")
    with pytest.raises(ConfigError, match=r"training_service\.token: the environment variable PAI_TOKEN is not set"):
        make(root).validate()


def test_many_jobs_come_in_pages(root, pai, monkeypatch):
    monkeypatch.setattr("nasflow.training_service.hosted.openpai._PAGE", 2)
    service = make(root, slots=5)
    handles = [service.submit(script(f"job-{i}", ["wait", "go"])) for i in range(5)]
    for handle in handles:
        await_status(service, handle, JobStatus.RUNNING)
    assert len(service._look()) == 5
    (root / "go").touch()
    assert [finish(service, handle).exit_code for handle in handles] == [0] * 5


# --- the token ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("token", ["hush\n", "hu sh", "", "hüsh"])
def test_a_token_that_a_header_can_not_carry_is_refused_unread(root, monkeypatch, token):
    monkeypatch.setenv("PAI_TOKEN", token)
    with pytest.raises(ConfigError, match=r"^training_service\.token: this secret is empty, or has spaces") as refused:
        make(root).validate()
    assert "sh" not in str(refused.value).partition(":")[2].replace("such", "")


def test_the_token_is_shown_nowhere(root, pai, caplog):
    caplog.set_level(logging.DEBUG)
    service = make(root)
    pai.faults = [Fault("GET", r"/jobs$", code=400, body=f"no {TOKEN} {quote(TOKEN)}".encode())]
    with pytest.raises(ServiceError) as refused:
        service._look()
    assert "no *** ***" in str(refused.value)
    pai.faults = [Fault(code=500, body=json.dumps({"message": f"no {TOKEN}"}).encode())]
    service.prepare()
    handle = service.submit(script("job"))
    assert finish(service, handle).exit_code == 0
    assert "HTTP Request: POST" in caplog.text
    assert TOKEN not in caplog.text
    assert not [file for file in root.rglob("*") if file.is_file() and TOKEN in file.read_text(errors="replace")]
    assert TOKEN not in repr(service._config) + service._config.model_dump_json()
    assert all(request.headers["authorization"] == f"Bearer {TOKEN}" for request in pai.requests[-3:])


@pytest.mark.parametrize("url", ["pai.example.com", "ftp://pai", "https://me:hush@pai", "https://pai?token=hush"])
def test_a_url_has_no_secret_in_it(root, url):
    with pytest.raises(ValueError, match=r"begins with neither|has more than a host"):
        make(root, url=url)
