"""The Ray service keeps the contract, and its own promises, on a real Ray head."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from nasflow.config.services.ray import RayServiceConfig
from nasflow.errors import ServiceError
from nasflow.testing.training_service import TrainingServiceContract, await_status, finish, numbers, script, until
from nasflow.training_service.base import JobStatus

ray_service = pytest.importorskip("nasflow.training_service.cluster.ray", reason="needs Ray: install nasflow[ray]")

pytestmark = pytest.mark.long
SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
ADDRESS = "NASFLOW_TEST_RAY"
CPUS = 3


@pytest.fixture(scope="session", autouse=True)
def ray():
    """A head on free ports, in a short folder: the paths of its sockets have at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="nasflow-ray-"))
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    gcs, dashboard, client = (each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("PGPASSWORD", "hush")  # of who started the cluster, too
        patch.setenv(ADDRESS, f"http://127.0.0.1:{dashboard}")
        with (folder / "head.log").open("wb") as log:
            head = subprocess.Popen(
                [
                    *(Path(sys.executable).with_name("ray"), "start", "--head", "--block", "--disable-usage-stats"),
                    *("--port", str(gcs), "--node-ip-address", "127.0.0.1", "--temp-dir", str(folder / "t")),
                    *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)),
                    *("--ray-client-server-port", str(client), "--num-cpus", str(CPUS), "--num-gpus", "2"),
                    *("--min-worker-port", "0", "--max-worker-port", "0", "--object-store-memory", str(80 * 2**20)),
                ],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            until(lambda: _up(folder / "root", head), "Ray's dashboard", 120)
            yield
        finally:
            programs = [head, *psutil.Process(head.pid).children(recursive=True)] if head.poll() is None else []
            head.terminate()
            head.wait(60)
            _, left = psutil.wait_procs([each for each in programs if each is not head], timeout=20)
            for process in left:
                process.kill()
            shutil.rmtree(folder, ignore_errors=True)


def _up(root, head):
    if head.poll() is not None:
        raise RuntimeError(f"Ray did not start: {(root.parent / 'head.log').read_text()}")
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


def make(root: Path, slots: int = 1, **options):
    options = {"address": os.environ[ADDRESS], "max_jobs": slots, **options}
    return ray_service.RayService(RayServiceConfig(**options), root, runner=SCRIPTED)


class TestRayService(TrainingServiceContract):
    factory = f"{__file__}:make"

    def lose(self, service, handle):
        """Ray's own process of the job."""
        (pid,) = numbers(service, f"jobs/{handle.job_id}/runs")
        one_job = psutil.Process(pid).parent()
        one_job.parent().kill()


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


def test_validate_says_what_is_wrong(root):
    make(root).validate()
    with pytest.raises(ServiceError, match=r"Ray's Jobs API at http://127\.0\.0\.1:9 does not answer"):
        make(root, address="http://127.0.0.1:9").validate()
    assert not root.exists()
