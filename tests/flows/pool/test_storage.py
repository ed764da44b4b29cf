"""Workers that share no folder with the search, or see it under another path."""

import json
import os
import sys
from pathlib import Path

import psutil
import psycopg
import pytest

from nasflow.errors import ServiceError
from nasflow.testing.training_service import epochs, finish, numbers, script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.storage.scratch import own_folder
from tests.flows.pool import test_service
from tests.flows.pool.pools import PATIENCE, Pools, kill
from tests.handful import handful
from tests.object_store.far import FarNodesContract, far_disks, storage
from tests.object_store.s3 import KEY, SECRET

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("uses_server"), pytest.mark.timeout(3 * PATIENCE)]
POOL = "far"


def make(root: Path, slots: int = 1, **options):
    """A service whose storage is in the environment, as another process makes it."""
    return test_service.make(root, slots, **{"work_pool": POOL, "storage": storage()} | options)


@pytest.fixture(scope="module")
def pool(pools: Pools):
    """A pool with a worker."""
    with pools.worker(pools.make(POOL), "of-far"):
        yield


@pytest.fixture
def scratch(s3, tmp_path, monkeypatch):
    """The workers' own disks."""
    return far_disks(s3, tmp_path, monkeypatch)


@pytest.fixture
def root(scratch, tmp_path):
    yield tmp_path / "root"
    make(tmp_path / "root").cleanup()


@handful
@pytest.mark.usefixtures("pool")
class TestObjectStoreOfAPool(FarNodesContract):
    """The rest: TestPrefectService, and TestObjectStore of the tests' own nodes."""

    factory = f"{__file__}:make"

    def lose(self, service, handle):
        """The process of the job's flow run."""
        flow_run_of(service, handle).kill()

    def await_ends(self):
        """Those of killed flow runs end by themselves. What they leave is removed by the next that begins there."""
        until(lambda: not self.strays(self.scratch), "their ends", PATIENCE)
        until(self.tidied, "a begin that finds their locks free", PATIENCE)  # held until after a process's last sign

    def tidied(self):
        """Begin and end as the next flow run; whether nothing is left then."""
        with own_folder(str(self.scratch)):
            pass
        return not list(self.scratch.glob("nasflow-*/run-*"))


def flow_run_of(service, handle):
    """The process of a running job's flow run."""
    (pid,) = until(lambda: service.status(handle) and numbers(service, f"jobs/{handle.job_id}/runs"), "start", PATIENCE)
    carrier = psutil.Process(pid).parent().parent()
    assert "carrier" in " ".join(carrier.cmdline())
    return carrier.parent()


def release(scratch):
    """Let jobs go on."""
    for job in scratch.glob("nasflow-*/run-*/jobs/*"):
        (job.parents[1] / "go").touch()


def test_a_job_lives_on_without_its_worker_and_goes_on_at_another_without_its_flow_run(pools: Pools, root, scratch):
    name = pools.make("far-killed")
    first = pools.start_worker(name, "far-first")
    spec = script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2])
    service = make(root, work_pool=name)
    try:
        service.prepare()  # makes the automation
        handle = service.submit(spec)
        until(lambda: epochs(service, handle), "first epoch", PATIENCE)
        first.kill()
        first.wait()
        assert service.status(handle).status is JobStatus.RUNNING
        flow_run_of(service, handle).kill()
        state = until(lambda: s if (s := service.status(handle)).status.finished else None, "its loss", PATIENCE)
        assert state.status is JobStatus.LOST
        with pools.worker(name, "far-second"):
            assert service.submit(spec) == handle
            begun = [(1, False), (1, True)]
            until(lambda: service.status(handle) and epochs(service, handle) == begun, "second run", PATIENCE)
            release(scratch)
            assert finish(service, handle, PATIENCE).exit_code == 0
            assert epochs(service, handle) == [(1, False), (1, True), (2, False)]
            service.cleanup()
    finally:
        kill(first)


@pytest.mark.usefixtures("pool")
def test_credentials_are_in_a_secret_block_and_nowhere_else(pools: Pools, s3, root, postgresql_server, caplog):
    """Neither in Prefect's database in clear, nor in files, objects of the store, command lines and logs."""
    caplog.set_level("INFO")
    service = make(root)
    service.validate()
    report = ["report", "report.json"]
    handle = service.submit(script("job", ["print", "said by it"], ["epoch", 1], report, ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch", PATIENCE)
    until((root / "jobs/job/report.json").exists, "report", PATIENCE)
    kept = [path.read_bytes() for path in root.parent.rglob("*") if path.is_file()]
    kept += [s3.client.get_object(Bucket="bucket", Key=name)["Body"].read() for name in s3.objects()]
    processes = [" ".join(_words(process)) for process in psutil.process_iter()]
    assert any("cluster.storage.carrier" in words for words in processes)
    release(root.parent / "scratch")
    assert finish(service, handle, PATIENCE).exit_code == 0
    (run,) = pools.runs(root)
    body = {"logs": {"flow_run_id": {"any_": [run["id"]]}}}
    until(lambda: "said by it" in str(pools.server.post("/logs/filter", body)), "the log in Prefect", PATIENCE)
    until(lambda: pools.states(root) == ["COMPLETED"], "its flow run's end", PATIENCE)
    with psycopg.connect(postgresql_server.replace("/postgres?", "/pools?")) as database:
        assert _rows_with(database, "s3://bucket/searches") > 0
        assert [_rows_with(database, secret) for secret in (KEY, SECRET)] == [0, 0]
    for secret in (KEY, SECRET):
        assert not [each for each in kept if secret.encode() in each]
        assert not [words for words in processes if secret in words]
    assert SECRET not in caplog.text and SECRET not in service.log_tail(handle)
    blocks = {"block_types": {"slug": {"any_": ["secret"]}}}
    assert len(pools.server.post("/block_documents/filter", blocks)) == 1
    service.cleanup()
    assert pools.server.post("/block_documents/filter", blocks) == []
    assert s3.objects() == []


def _rows_with(database, text: str) -> int:
    """How many rows of all tables have a text in them."""
    query = (
        "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public' AND table_type = 'BASE TABLE'"
    )
    tables = [name for (name,) in database.execute(query).fetchall()]
    assert "flow_run" in tables and "block_document" in tables
    counts = [
        database.execute(f'SELECT count(*) FROM "{table}" AS t WHERE strpos(t::text, %s) > 0', [text]).fetchone()
        for table in tables
    ]
    return sum(count for (count,) in counts)


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.mark.usefixtures("pool")
def test_workers_may_see_the_folder_under_another_path(pools: Pools, tmp_path):
    local, there = tmp_path / "local", tmp_path / "there"
    local.mkdir()
    there.symlink_to(local)
    service = test_service.make(local / "root", work_pool=POOL, storage={"local": str(local), "remote": str(there)})
    service.validate()
    handle = service.submit(script("job", ["epoch", 1]))
    try:
        assert finish(service, handle, PATIENCE).exit_code == 0, service.log_tail(handle)
        (run,) = pools.runs(local / "root")
        assert run["parameters"]["root"] == str(there / "root")
        assert str(local) not in json.dumps(run["parameters"])
    finally:
        service.cleanup()
    outside = test_service.make(tmp_path / "root", work_pool=POOL, storage={"local": str(local), "remote": str(there)})
    with pytest.raises(ServiceError, match=r"storage\.local: the study.s folder \S+/root is not in \S+/local"):
        outside.validate()


@pytest.mark.usefixtures("pool")
def test_a_worker_that_can_not_run_a_job_says_so(pools: Pools, root, scratch, tmp_path):
    """In Prefect, and three times in a row, as the search's error."""
    (scratch / f"nasflow-{os.geteuid()}").mkdir(parents=True)
    (scratch / f"nasflow-{os.geteuid()}").chmod(0o777)
    service = make(root)
    with pytest.raises(
        ServiceError, match=r"3 jobs in a row ended on their nodes before nasflow began there"
    ) as caught:
        for number in range(4):
            assert finish(service, service.submit(script(f"job-{number}")), PATIENCE).status is JobStatus.LOST
    assert "this worker can't run jobs: others can write" in str(caught.value)
    assert set(pools.states(root)) == {"FAILED"}
    (scratch / f"nasflow-{os.geteuid()}").chmod(0o700)


@pytest.mark.usefixtures("pool")
def test_a_python_without_nasflow_is_said(pools: Pools, root, tmp_path):
    """The interpreter of jobs is another than that of flow runs."""
    bare = tmp_path / "bare"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    bare.chmod(0o755)
    service = make(root, python=str(bare))
    assert finish(service, service.submit(script("job")), PATIENCE).status is JobStatus.LOST
    until(lambda: pools.states(root) == ["FAILED"], "its end in Prefect", PATIENCE)
    assert "can't run the job: " in pools.runs(root)[0]["state"]["message"]
