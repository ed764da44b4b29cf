"""The Dask service keeps the contract, and its own promises, on a real scheduler with real workers."""

import contextlib
import json
import os
import threading
from pathlib import Path

import psutil
import pytest

from nasflow.config.services.cluster.dask import DaskServiceConfig
from nasflow.errors import ServiceError
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
from nasflow.training_service.local.service import RUNNER
from tests.handful import handful
from tests.training.wide.on_services import assert_goes_on_after_a_kill

pytest.importorskip("distributed", reason="needs Dask: install nasflow[dask]")
dask_service = pytest.importorskip("nasflow.training_service.cluster.dask")

from tests.dask import WORKERS, start_dask  # noqa: E402 - needs Dask

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
ADDRESS = "NASFLOW_TEST_DASK"


@pytest.fixture(scope="module")
def dask(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PGPASSWORD", "hush")  # of who started the cluster, too
        with start_dask(tmp_path_factory.mktemp("dask")) as cluster:
            patch.setenv(ADDRESS, cluster.address)
            yield cluster


@pytest.fixture
def root(tmp_path):
    yield tmp_path / "root"
    make(tmp_path / "root").cleanup()


pytestmark = [pytest.mark.usefixtures("dask"), pytest.mark.long]


def make(root: Path, slots: int = 1, runner: str = SCRIPTED, **options):
    return dask_service.DaskService(
        DaskServiceConfig(address=os.environ[ADDRESS], max_jobs=slots, **options), root, runner=runner
    )


@handful
class TestDaskService(TrainingServiceContract):
    """What depends on Dask: Slurm keeps the whole contract with the same `ClusterService`."""

    factory = f"{__file__}:make"

    def lose(self, service, handle):
        """Its worker, which its nanny starts again."""
        (pid,) = numbers(service, f"jobs/{handle.job_id}/runs")
        one_job = psutil.Process(pid).parent()
        one_job.parent().kill()


def test_the_environment_of_jobs(root, monkeypatch):
    monkeypatch.syspath_prepend("/added")
    service = make(root)
    handle = service.submit(script("job", ["report", "report.json"]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
    environment = json.loads((root / "jobs/job/report.json").read_text())["environment"]
    assert environment["OMP_NUM_THREADS"] == str(len(os.sched_getaffinity(0)))  # a worker has one thread here
    assert environment["MALLOC_MMAP_MAX_"] == "0"
    assert "/added" in environment["PYTHONPATH"].split(":")
    assert "PGPASSWORD" not in environment


class Hostile:
    """Its pickle makes a file where it is unpickled, but not on the cluster."""

    def __init__(self, file: Path, here: int):
        self.file, self.here = file, here

    def __reduce__(self):
        return harm, (self.file, self.here)


def harm(file: Path, here: int) -> None:
    if os.getpid() == here:
        file.touch()


def test_what_workers_answer_is_not_unpickled(root, tmp_path, monkeypatch):
    """Neither results, nor their types, nor errors."""
    monkeypatch.setattr(dask_service, "_ANSWERS_WITHIN", 600.0)  # however slow the machine that runs the tests
    file = tmp_path / "harm"

    def hostile_result():
        from distributed.protocol.serialize import Serialized, serialize

        return Serialized(*serialize(Hostile(file, here), serializers=["pickle"]))

    def hostile_error():
        raise ValueError(Hostile(file, here))

    here = os.getpid()
    client = make(root)._connect()
    for function in (hostile_result, hostile_error):
        with contextlib.suppress(Exception):
            client.submit(function, pure=False).result(timeout=10)
        assert not file.exists(), function
    with pytest.raises(TypeError, match="only able to deserialize data with"):
        client.run(hostile_result)
    assert not file.exists()


def test_jobs_take_what_workers_have(root):
    service = make(root, slots=WORKERS + 1, resources={"GPU": 1})
    service.validate()
    handles = [service.submit(script(f"job-{i}", ["wait", "go"])) for i in range(WORKERS + 1)]
    for handle in handles[:WORKERS]:
        await_status(service, handle, JobStatus.RUNNING)
    state = until(lambda: s if (s := service.status(handles[-1])).reason else None, "reason for waiting")
    assert (state.status, state.reason) == (JobStatus.PENDING, "Dask's task is assigned to a worker")
    (root / "go").touch()
    assert [finish(service, handle).exit_code for handle in handles] == [0] * (WORKERS + 1)


def test_validate_says_what_is_wrong(root, monkeypatch):
    make(root).validate()
    with pytest.raises(ServiceError, match=r"no worker of the Dask cluster has \{'FPGA': 2\.0\}; .*--resources FPGA=2"):
        make(root, resources={"FPGA": 2}).validate()
    with monkeypatch.context() as patch:
        patch.setattr(dask_service, "version", lambda _: "9.9")
        with pytest.raises(ServiceError, match=r"Dask's worker tcp://\S+ needs nasflow 9\.9, and has \d"):
            make(root).validate()
    monkeypatch.setattr(dask_service, "_CONNECT_WITHIN", 1.0)
    monkeypatch.setenv(ADDRESS, "tcp://127.0.0.1:9")
    with pytest.raises(ServiceError, match=r"training_service\.address: there is no Dask scheduler at tcp://127"):
        make(root).validate()
    monkeypatch.undo()
    assert not root.exists()


def test_tls_without_certificates_is_one_sentence(root):
    config = DaskServiceConfig(address="tls://127.0.0.1:9")
    with pytest.raises(ServiceError, match=r"training_service\.address: .* name the certificates in Dask's config"):
        dask_service.DaskService(config, root).validate()


@pytest.mark.parametrize("address", ["tls://127.0.0.1:9", "tcp://127.0.0.1:9"])
def test_a_client_that_can_not_connect_leaves_no_thread(root, monkeypatch, address):
    monkeypatch.setattr(dask_service, "_CONNECT_WITHIN", 0.5)
    before = threading.active_count()
    with pytest.raises(ServiceError, match=r"training_service\.address"):
        dask_service.DaskService(DaskServiceConfig(address=address), root).validate()
    assert threading.active_count() == before


def test_a_scheduler_that_does_not_answer_is_waited_for(root, dask):
    """A job's end is seen by its files."""
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2]))
    until(lambda: epochs(service, handle), "first epoch")
    service._client.close()  # as if the connection had broken
    assert service.status(handle).status is JobStatus.RUNNING
    (root / "go").touch()
    assert finish(service, handle).exit_code == 0
    assert finish(service, service.submit(script("next"))).exit_code == 0


def test_a_scheduler_that_hangs_is_not_waited_for_for_ever(root, dask, monkeypatch, caplog):
    monkeypatch.setattr(dask_service, "_ANSWERS_WITHIN", 0.5)
    service = make(root)
    service.prepare()
    scheduler = psutil.Process(dask.scheduler.pid)
    scheduler.suspend()
    try:
        service.prepare()
        assert "the Dask scheduler does not answer: timed out after 0.5 s" in caplog.text
    finally:
        scheduler.resume()
    monkeypatch.undo()
    assert finish(service, service.submit(script("job"))).exit_code == 0


def test_a_trial_on_two_devices(root, tmp_path):
    assert_goes_on_after_a_kill(make(root, runner=RUNNER), root, tmp_path / "solo")
