"""The Ray service keeps the contract, and its own promises, on a real Ray head."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from nasflow.config.services.cluster.ray import RayServiceConfig
from nasflow.errors import ServiceError
from nasflow.testing.training_service import TrainingServiceContract, await_status, finish, numbers, script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.ray import RayService
from nasflow.training_service.local.service import RUNNER
from tests.handful import handful
from tests.ray_head import TOKEN, ray_head
from tests.training.wide.on_services import assert_goes_on_after_a_kill

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]  # the first test may have to install Ray
SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
ADDRESS = "NASFLOW_TEST_RAY"
HEADER = "NASFLOW_TEST_RAY_HEADER"


@pytest.fixture(scope="module", autouse=True)
def ray(tmp_path_factory):
    with ray_head({"PGPASSWORD": "hush"}) as address, pytest.MonkeyPatch.context() as patch:
        patch.setenv(ADDRESS, address)
        patch.setenv(HEADER, f"Bearer {TOKEN}")
        until(lambda: _up(tmp_path_factory.mktemp("up")), "Ray's dashboard", 120)
        yield


def _up(root):
    try:
        make(root).validate()
    except ServiceError:
        time.sleep(0.5)
        return False
    return True


@pytest.fixture
def root(tmp_path):
    yield tmp_path / "root"
    make(tmp_path / "root").cleanup()


def make(root: Path, slots: int = 1, runner: str = SCRIPTED, **options):
    headers = {"Authorization": {"env": HEADER}}
    options = {"address": os.environ[ADDRESS], "headers": headers, "max_jobs": slots, **options}
    return RayService(RayServiceConfig(**options), root, runner=runner)


@handful
class TestRayService(TrainingServiceContract):
    """What depends on Ray: Slurm keeps the whole contract with the same `ClusterService`."""

    factory = f"{__file__}:make"

    def lose(self, service, handle):
        """Ray's own process of the job; a second later at the latest, Ray kills the group of its entry point."""
        (pid,) = numbers(service, f"jobs/{handle.job_id}/runs")
        entry_point = psutil.Process(pid).parent().parent()
        entry_point.parent().kill()
        os.killpg(entry_point.pid, signal.SIGKILL)  # at once, which leaves no time to end what the job started


def test_the_environment_of_jobs(root):
    service = make(root, cpus_per_job=2)
    handle = service.submit(script("job", ["report", "report.json"]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    environment = json.loads((root / "jobs/job/report.json").read_text())["environment"]
    assert (environment["OMP_NUM_THREADS"], environment["MALLOC_MMAP_MAX_"]) == ("2", "0")
    assert environment["CUDA_VISIBLE_DEVICES"] == ""
    assert "PGPASSWORD" not in environment


def test_jobs_take_the_gpus_there_are(root):
    service = make(root, slots=3, gpus_per_job=1)
    handles = [service.submit(script(f"job-{i}", ["report", "report.json"], ["wait", "go"])) for i in range(3)]
    for handle in handles[:2]:
        await_status(service, handle, JobStatus.RUNNING)
    assert service.status(handles[2]).status is JobStatus.PENDING
    (root / "go").touch()
    assert [finish(service, handle).exit_code for handle in handles] == [0] * 3
    reports = [json.loads((root / f"jobs/job-{i}/report.json").read_text()) for i in range(2)]
    assert {report["environment"]["CUDA_VISIBLE_DEVICES"] for report in reports} == {"0", "1"}


def test_a_dashboard_that_wants_a_token_is_told_from_one_that_does_not_answer(root):
    with pytest.raises(ServiceError, match=r"^training_service\.headers: .* denies access \(HTTP 40[13]\); give the"):
        make(root, headers={}).validate()


def test_the_error_shows_rays_own_log_of_jobs_that_did_not_begin(root):
    service = make(root)
    for number in range(3):
        (root / f"jobs/job-{number}/job.log").mkdir(parents=True)
        await_status(service, service.submit(script(f"job-{number}")), JobStatus.LOST)
    with pytest.raises(ServiceError, match=r"jobs/job-2/job\.log may show why, and ray's own log of it .*directory"):
        service.submit(script("job-3"))


def test_validate_says_what_is_wrong(root):
    make(root).validate()
    with pytest.raises(ServiceError, match=r"Ray's Jobs API at http://127\.0\.0\.1:9 does not answer"):
        make(root, address="http://127.0.0.1:9").validate()
    assert not root.exists()


def test_a_trial_on_two_devices(root, tmp_path):
    assert_goes_on_after_a_kill(make(root, runner=RUNNER), root, tmp_path / "solo")
