"""Jobs on a work pool whose flow run is cancelled, or never begins."""

import pytest

from nasflow.flows.pool import service as service_module
from nasflow.testing.training_service import epochs, finish, script, until
from nasflow.training_service.base import JobStatus
from tests.flows.pool.conftest import PATIENCE, Pools
from tests.flows.pool.test_service import make

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
    (root / "go").touch()
    assert finish(service, handle, PATIENCE).exit_code == 0
    assert epochs(service, handle) == [(1, False), (1, True), (2, False)]
    return lost.reason


def test_cancelled_in_prefect(pool, pools: Pools, service, root):
    handle = begun(service)
    (run,) = pools.runs(root)
    assert run["state_type"] == "RUNNING"
    pools.server.post(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}, "force": True})
    assert goes_on(service, root, handle)  # the reason depends on who notices first
    until(lambda: pools.states(root) == ["CANCELLED", "COMPLETED"], "states of both flow runs", PATIENCE)


def test_a_worker_that_never_starts_what_it_took(pools: Pools, tmp_path, monkeypatch):
    monkeypatch.setattr(service_module, "_STARTS_WITHIN", 1.0)
    root, name = tmp_path / "root", pools.make("stuck")
    service = make(root, work_pool=name)
    handle = service.submit(script("job"))
    until(lambda: service.status(handle) and pools.runs(root), "its flow run", PATIENCE)
    (run,) = pools.runs(root)
    pools.server.post(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "PENDING"}, "force": True})
    assert finish(service, handle, PATIENCE).status is JobStatus.LOST
    assert pools.states(root) == ["CANCELLED"]
