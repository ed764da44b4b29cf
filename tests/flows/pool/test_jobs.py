"""Jobs on a work pool whose flow runs, workers, machine or server are lost, and what Prefect is told of jobs."""

import json
import logging
import signal
from concurrent.futures import ThreadPoolExecutor

import psutil
import pytest

from nasflow.flows.pool import service as service_module
from nasflow.flows.pool.deployment import job_deployment_name
from nasflow.flows.pool.service import PrefectService
from nasflow.testing.training_service import epochs, finish, numbers, script, until
from nasflow.training_service.base import JobStatus
from tests.flows.pool.pools import PATIENCE, Pools, kill
from tests.flows.pool.test_service import SCRIPTED, make
from tests.flows.searches import PrefectProcess

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("uses_server"), pytest.mark.timeout(3 * PATIENCE)]
POOL = "jobs"
TWO_EPOCHS = script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2])


@pytest.fixture(scope="module")
def pool(pools: Pools):
    """A pool with a worker."""
    with pools.worker(pools.make(POOL), "of-jobs"):
        yield


@pytest.fixture
def root(tmp_path):
    yield tmp_path / "root"
    make(tmp_path / "root", work_pool=POOL).cleanup()


@pytest.fixture
def service(root):
    return make(root, work_pool=POOL)


def begun(service, spec=TWO_EPOCHS):
    """The handle of a job that has ended its first epoch."""
    handle = service.submit(spec)
    until(lambda: epochs(service, handle), "first epoch", PATIENCE)
    return handle


def goes_on(service, root, handle, spec=TWO_EPOCHS):
    """The lost job continues when it is submitted again; returns the reason of its loss."""
    until(lambda: service.status(handle).status.finished, "its loss", PATIENCE)
    lost = service.status(handle)
    assert lost.status is JobStatus.LOST
    assert service.submit(spec) == handle
    until(lambda: service.status(handle) and len(numbers(service, "jobs/job/runs")) == 2, "second run", PATIENCE)
    (root / "go").touch()  # which the first run would see as well, until it ends
    assert finish(service, handle, PATIENCE).exit_code == 0
    assert epochs(service, handle) == [(1, False), (1, True), (2, False)]
    return lost.reason


def test_cancelled_in_prefect(pool, pools: Pools, service, root):
    handle = begun(service)
    (run,) = pools.runs(root)
    assert run["state_type"] == "RUNNING"
    pools.server.post(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
    assert goes_on(service, root, handle).startswith("its flow run in Prefect is Cancel")  # -ling or -led
    until(lambda: pools.states(root) == ["CANCELLED", "COMPLETED"], "states of both flow runs", PATIENCE)


def test_cancelled_in_prefect_when_its_worker_is_gone(pools: Pools, tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "_ENDS_WITHIN", 2.0)
    root, name = tmp_path / "root", pools.make("gone")
    worker = pools.start_worker(name, "gone")
    service = make(root, work_pool=name)
    handle = begun(service)
    worker.kill()
    worker.wait()
    (run,) = pools.runs(root)
    pools.server.post(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
    with pools.worker(name, "another"):
        assert goes_on(service, root, handle).startswith("its flow run in Prefect is Cancel")
        service.cleanup()


def test_deleted_in_prefect(pool, pools: Pools, service, root):
    handle = begun(service)
    (pid,) = numbers(service, "jobs/job/runs")
    (run,) = pools.runs(root)
    pools.server.call("DELETE", f"/flow_runs/{run['id']}")
    assert goes_on(service, root, handle) == "prefect no longer knows the job"
    assert not psutil.pid_exists(pid)


def test_jobs_live_on_without_their_worker_and_another_takes_the_next(pools: Pools, tmp_path):
    root, name = tmp_path / "root", pools.make("killed")
    first = pools.start_worker(name, "first")
    service = make(root, work_pool=name)
    try:
        handle = begun(service)
        first.kill()
        first.wait()
        with pools.worker(name, "second"):
            (root / "go").touch()
            assert finish(service, handle, PATIENCE).exit_code == 0
            assert epochs(service, handle) == [(1, False), (2, False)]
            assert finish(service, service.submit(script("next")), PATIENCE).exit_code == 0
            service.cleanup()
    finally:
        kill(first)


def test_a_machine_is_lost(pools: Pools, tmp_path):
    root, name = tmp_path / "root", pools.make("unplugged")
    worker = pools.start_worker(name, "unplugged")
    service = make(root, work_pool=name)
    service.prepare()  # makes the automation
    handle = begun(service)
    (pid,) = numbers(service, "jobs/job/runs")
    job = psutil.Process(pid)
    machine = [job, job.parent(), job.parent().parent(), worker]
    for process in machine:
        process.send_signal(signal.SIGSTOP)  # so that none tells of another's end
    for process in machine:
        process.kill()
    with pools.worker(name, "another"):
        assert "no heartbeat for 90 s" in goes_on(service, root, handle)
        service.cleanup()


def test_the_server_is_away(pool, prefect_process: PrefectProcess, service, root, caplog):
    handle = begun(service)
    prefect_process.end(signal.SIGKILL)
    try:
        until(lambda: service.status(handle) and "Prefect's API does not answer" in caplog.text, "a warning", PATIENCE)
        waiting = service.submit(script("next"))
        (root / "go").touch()
        assert finish(service, handle, PATIENCE).exit_code == 0
        assert service.status(waiting).status is JobStatus.PENDING
    finally:
        prefect_process.start()
    assert finish(service, waiting, PATIENCE).exit_code == 0
    assert epochs(service, handle) == [(1, False), (2, False)]
    assert len(numbers(service, "jobs/job/runs")) == 1


def test_a_worker_that_never_starts_what_it_took(pools: Pools, tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "_WAITS_LONG", 0.5)
    monkeypatch.setattr(service_module, "_STARTS_WITHIN", 1.0)
    root, name = tmp_path / "root", pools.make("stuck")
    service = make(root, work_pool=name)
    handle = service.submit(script("job"))
    until(lambda: service.status(handle) and pools.runs(root), "its flow run", PATIENCE)
    (run,) = pools.runs(root)
    pools.server.post(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "PENDING"}, "force": True})
    assert finish(service, handle, PATIENCE).status is JobStatus.LOST
    assert pools.states(root) == ["CANCELLED"]


def test_a_job_that_a_worker_took_before_it_died(pools: Pools, tmp_path, monkeypatch):
    """Its flow run is PENDING, and no other worker takes it."""
    monkeypatch.setattr(service_module, "_WAITS_LONG", 0.5)
    root, name = tmp_path / "root", pools.make("taken")
    service = make(root, work_pool=name)
    handle = service.submit(script("job"))
    until(lambda: service.status(handle) and pools.runs(root), "its flow run", PATIENCE)
    (run,) = pools.runs(root)
    pools.server.post(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "PENDING"}, "force": True})
    with pools.worker(name, "another"):
        assert finish(service, handle, PATIENCE).status is JobStatus.LOST
        again = service.submit(script("again"))
        assert finish(service, again, PATIENCE).exit_code == 0
        until(lambda: sorted(pools.states(root)) == ["CANCELLED", "COMPLETED"], "the ends of both", PATIENCE)


def test_it_says_why_jobs_wait(pools: Pools, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(service_module, "_WAITS_LONG", 0.5)
    caplog.set_level(logging.WARNING)
    root, name = tmp_path / "root", pools.make("unattended")
    service = make(root, work_pool=name)
    handle = service.submit(script("job"))
    why = f"training_service.work_pool: no worker polls '{name}'; start one where jobs are to run"
    until(lambda: why in service.status(handle).reason, "the reason", PATIENCE)
    assert caplog.text.count(why) == 1
    service.cleanup()
    assert service.status(handle).status is JobStatus.CANCELLED
    assert pools.states(root) == ["CANCELLED"]


class Secretive(PrefectService):
    """Its jobs get a secret."""

    def _secret_environment(self):
        return {"STORAGE_PASSWORD": "very hush"}


def test_what_jobs_inherit_and_what_prefect_shows(pool, pools: Pools, root, service):
    service = Secretive(service._config.model_copy(update={"cpus_per_job": 2}), root, runner=SCRIPTED)
    handle = service.submit(script("job", ["report", "report.json"], ["print", "said by the job"]))
    assert finish(service, handle, PATIENCE).exit_code == 0, service.log_tail(handle)
    environment = json.loads((root / "jobs/job/report.json").read_text())["environment"]
    assert environment["STORAGE_PASSWORD"] == "very hush"
    assert (environment["OMP_NUM_THREADS"], environment["CUDA_VISIBLE_DEVICES"]) == ("2", "")
    assert not {name for name in environment if name.startswith("PREFECT_")}
    until(lambda: pools.states(root) == ["COMPLETED"], "its flow run's end", PATIENCE)
    (run,) = pools.runs(root)
    assert "very hush" not in json.dumps(run)
    assert f"study:{root.name}" in run["tags"]
    body = {"logs": {"flow_run_id": {"any_": [run["id"]]}}}
    until(lambda: "said by the job" in str(pools.server.post("/logs/filter", body)), "the log in Prefect", PATIENCE)
    files = [file for file in root.rglob("*") if file.is_file() and file.name != "report.json"]
    assert not [file for file in files if b"very hush" in file.read_bytes()]
    blocks = {"block_types": {"slug": {"any_": ["secret"]}}}
    assert len(pools.server.post("/block_documents/filter", blocks)) == 1
    service.cleanup()
    assert pools.server.post("/block_documents/filter", blocks) == []


def test_the_deployment_is_made_once_and_again_when_it_is_deleted(pools: Pools, tmp_path):
    name = pools.make("deployed")
    services = [make(tmp_path / f"root-{i}", work_pool=name) for i in range(3)]
    with ThreadPoolExecutor(3) as threads:
        list(threads.map(lambda service: service.prepare(), services))
    which = {"deployments": {"name": {"any_": [job_deployment_name(name)]}}}
    (made,) = pools.server.post("/deployments/filter", which)
    assert (made["entrypoint"], made["pull_steps"]) == ("nasflow.flows.pool.job_flow.job", [])
    pools.server.call("DELETE", f"/deployments/{made['id']}")
    handle = services[0].submit(script("job"))
    until(lambda: services[0].status(handle) and pools.runs(tmp_path / "root-0"), "its flow run", PATIENCE)
    assert len(pools.server.post("/deployments/filter", which)) == 1
    assert pools.states(tmp_path / "root-0") == ["SCHEDULED"]
    services[0].cleanup()
