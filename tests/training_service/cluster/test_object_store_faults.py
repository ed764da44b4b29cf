"""An object store that is away, slow or silent costs nothing but time. What it costs, and what it must not know."""

import json
import os
import re
import time
from http import HTTPStatus
from pathlib import Path

import psutil
import pytest
from pydantic import TypeAdapter

from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.config.services.storage import StorageConfig
from nasflow.errors import ServiceError
from nasflow.job.events import parse_event
from nasflow.testing.training_service import await_status, epochs, finish, numbers, script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.slurm import SlurmService
from nasflow.training_service.local.service import RUNNER
from tests.faults.proxy import Proxy
from tests.object_store.s3 import KEY, SECRET, on_nodes
from tests.training import jobs
from tests.training_service.cluster import nodes

pytestmark = pytest.mark.long


@pytest.fixture
def proxy(s3):
    made = Proxy(s3.port)
    yield made
    made.close()


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    (tmp_path / "code").mkdir()
    monkeypatch.chdir(tmp_path / "code")
    return tmp_path / "cluster"


@pytest.fixture
def open_service(s3, proxy, cluster, tmp_path, monkeypatch):
    def open_it(**options):
        storage = on_nodes(s3.storage(proxy.port)) | options
        monkeypatch.setenv(nodes.SETTINGS, nodes.settings(cluster, storage))
        return nodes.make(tmp_path / "root", 1)

    yield open_it
    proxy.switch("pass")
    nodes.make(tmp_path / "root", 1).cleanup()
    until(lambda: not s3.objects(), "an empty bucket")


def release(cluster, name):
    [job] = cluster.glob("nasflow-*/run-*/jobs/*")
    (job.parents[1] / name).touch()


def own_events(cluster):
    """Return what the job has written on its node."""
    [file] = cluster.glob("nasflow-*/run-*/jobs/*/events.jsonl")
    return file.read_text()


STEPS = [step for number in range(1, 5) for step in (["epoch", number], ["wait", f"go-{number}"])]


@pytest.mark.parametrize("mode", ["cut", "mute", "slow", HTTPStatus.SERVICE_UNAVAILABLE])
def test_training_goes_on_while_the_storage_is_away(open_service, cluster, proxy, mode):
    """And every epoch arrives, once, in order."""
    service = open_service()
    handle = service.submit(script("job", *STEPS))
    until(lambda: epochs(service, handle) == [(1, False)], "first epoch", 60)
    proxy.switch(mode)
    for number in (1, 2):
        release(cluster, f"go-{number}")
        until(lambda number=number: own_events(cluster).count('"epoch":') >= number + 1, "next epoch", 10)
        time.sleep(2)
        assert not service.status(handle).status.finished
    before = own_events(cluster)
    proxy.switch("pass")
    until(lambda: epochs(service, handle) == [(1, False), (2, False), (3, False)], "the epochs", 90)
    assert "".join(f"{line}\n" for line in service.events(handle)[0]) == before
    for number in (3, 4):
        release(cluster, f"go-{number}")
    assert finish(service, handle, 60).exit_code == 0
    assert epochs(service, handle) == [(number, False) for number in range(1, 5)]
    assert sorted(path.name for path in service.fetch("trials/00000").iterdir()) == [f"epoch-{n}" for n in range(1, 5)]


def test_an_epoch_costs_at_most_two_requests_of_its_node(open_service, cluster, s3):
    service = open_service(look_seconds=15)
    handle = service.submit(script("job", *STEPS))
    until(lambda: epochs(service, handle) == [(1, False)], "first epoch", 60)
    before = len(s3.requests)
    for number in range(1, 4):
        release(cluster, f"go-{number}")
        until(lambda number=number: len(epochs(service, handle)) == number + 1, "next epoch", 30)
    sent = [each for each in s3.requests[before:] if _is_of_node(*each)]
    release(cluster, "go-4")
    finish(service, handle, 60)
    assert 3 <= len(sent) <= 2 * 3, sent


def test_members_train_to_the_same_result_as_here(open_service, cluster, tmp_path):
    """Code is shipped, checkpoints come here, and a later job goes on from them on another node."""
    open_service()
    service = again(tmp_path / "root", cluster, runner=RUNNER)
    config = jobs.evaluator(epochs=3)
    spec = jobs.make_job("spaces.py:net", config, jobs.sample("spaces.py:net", config, 2))
    here = jobs.train(spec, tmp_path / "alone")
    short = spec.model_copy(update={"job_id": "first", "evaluator": jobs.evaluator(epochs=2)})
    handles = [service.submit(short)]
    assert finish(service, handles[0], 120).exit_code == 0, service.log_tail(handles[0])
    names = [sorted(path.name for path in service.fetch(f"trials/{n:05d}").iterdir()) for n in range(2)]
    assert names == [["epoch-0001.safetensors", "epoch-0002.safetensors"]] * 2
    events = [parse_event(line) for line in service.events(handles[0])[0]]
    assert _metrics(events) == {key: value for key, value in _metrics(here).items() if key[1] < 3}
    again_spec = spec.model_copy(update={"job_id": "second"})
    second = service.submit(again_spec)
    assert finish(service, second, 120).exit_code == 0, service.log_tail(second)
    events = [parse_event(line) for line in service.events(second)[0]]
    started = next(event for event in events if event.kind == "started")
    assert started.resumed == {0: 2, 1: 2}


def _metrics(events):
    return {(event.trial, event.epoch): event.metrics for event in events if event.kind == "epoch"}


def again(root, cluster, **options):
    """Return a service by the settings of the one before, with other options."""
    storage = TypeAdapter(StorageConfig).validate_python(json.loads(os.environ[nodes.SETTINGS])["storage"])
    return nodes.Nodes(root, 1, cluster, storage, **options)


def _is_of_node(method, path):
    return (method == "PUT" and re.search(r"/\d{8}$", path)) or (method == "GET" and path.endswith("/control"))


def test_no_credential_is_in_a_file_a_command_line_or_a_log(open_service, cluster, tmp_path, caplog):
    service = open_service()
    service.validate()
    handle = service.submit(script("job", ["epoch", 1], ["report", "report.json"], ["wait", "go-1"]))
    until(lambda: epochs(service, handle), "first epoch", 60)
    until(lambda: "report.json" in {path.name for path in (tmp_path / "root/jobs/job").iterdir()}, "report", 60)
    secrets = [KEY.encode(), SECRET.encode()]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "report.json" for path in files)
    assert not [path for path in files for secret in secrets if secret in path.read_bytes()]
    assert not [p for p in psutil.process_iter() for secret in secrets if secret.decode() in " ".join(_words(p))]
    assert SECRET not in caplog.text and SECRET not in service.log_tail(handle)
    release(cluster, "go-1")
    assert finish(service, handle, 60).exit_code == 0


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_run_that_is_started_twice_begins_once(open_service, cluster):
    service = open_service()
    handle = service.submit(script("job", ["epoch", 1], ["wait", "go-1"]))
    until(lambda: epochs(service, handle), "first epoch", 60)
    run = service._records.run("job")
    [note] = cluster.glob("*.pid")
    note.unlink()
    service._give(run)
    until(lambda: not nodes.processes_of(note), "end of the second", 30)
    assert service.status(handle).status is JobStatus.RUNNING
    release(cluster, "go-1")
    until(lambda: service.status(handle).status.finished, "end", 60)
    assert service.status(handle).exit_code == 0
    assert len(numbers(service, "jobs/job/runs")) == 1


def test_a_run_that_was_given_up_ends_and_leaves_nothing(open_service, cluster, s3):
    """Its folder is gone, because the next controller removed it."""
    service = open_service()
    handle = service.submit(script("job", ["epoch", 1], ["wait", "never"]))
    await_status(service, handle, JobStatus.RUNNING)
    until(lambda: epochs(service, handle), "first epoch", 60)
    for key in s3.objects():
        s3.client.delete_object(Bucket="bucket", Key=key)
    [note] = cluster.glob("*.pid")
    until(lambda: not nodes.processes_of(note), "its end", 30)
    assert s3.objects() == []
    assert list(cluster.glob("nasflow-*/run-*")) == []
    assert service.status(handle).status in (JobStatus.RUNNING, JobStatus.LOST)


def test_a_job_is_told_when_no_controller_calls(open_service, cluster, tmp_path):
    open_service()
    service = again(tmp_path / "root", cluster, abandoned_after=3.0)
    handle = service.submit(script("job", ["epoch", 1], ["wait", "never"]))
    until(lambda: epochs(service, handle), "first epoch", 60)
    began = time.monotonic()
    while time.monotonic() - began < 5:
        assert service.status(handle).status is JobStatus.RUNNING
        time.sleep(0.2)
    [note] = cluster.glob("*.pid")
    until(lambda: not nodes.processes_of(note), "its end", 30)
    state = until(lambda: s if (s := service.status(handle)).status.finished else None, "its state")
    assert (state.status, state.reason) == (JobStatus.LOST, "no controller has called for 3 s")


def test_validate_says_what_is_wrong(open_service, s3):
    for options, sentence in (
        ({"url": "s3://nowhere/x"}, r"training_service\.storage.*check training_service\.storage"),
        ({"url": "nosuch://x/y"}, r"training_service\.storage.*nosuch"),
        (
            {"options": {"key": {"env": "NOT_SET"}}},
            r"options\.key: the environment variable NOT_SET is not set",
        ),
    ):
        with pytest.raises(Exception, match=sentence) as caught:
            open_service(**options).validate()
        assert SECRET not in str(caught.value)
    service = open_service()
    service.passes_secrets = False
    with pytest.raises(ServiceError, match=r"storage\.options\.key: nodes has no means .* \{env: NAME\}"):
        service.validate()
    open_service().validate()
    assert s3.objects() == []


def test_a_later_check_removes_what_one_has_left(open_service, proxy, s3, tmp_path, monkeypatch):
    """It got no answer, and its process has died since."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    proxy.switch("mute")
    with pytest.raises(ServiceError, match="the storage does not answer as it should"):
        open_service().validate()
    proxy.switch("pass")
    [left] = s3.objects()
    [note] = (tmp_path / "cache").glob("nasflow/storage-checks/*/*")
    assert note.name in left
    open_service().validate()
    assert s3.objects() == [left], "its process still runs"
    note.write_text('{"pid": 1, "started": "before"}')
    open_service().validate()
    assert s3.objects() == []
    assert not note.exists()


def test_a_folder_is_a_storage_too(open_service, cluster, tmp_path):
    service = open_service(url=f"file://{tmp_path}/storage", options={})
    service.validate()
    handle = service.submit(script("job", ["epoch", 1]))
    assert finish(service, handle, 60).exit_code == 0
    assert epochs(service, handle) == [(1, False)]
    service.cleanup()
    assert not [path for path in Path(tmp_path / "storage").rglob("*") if path.is_file()]


def test_jobs_of_slurm_get_credentials_by_the_environment_of_sbatch(slurm, s3, cluster, tmp_path, monkeypatch):
    """Neither the script, nor the job's own environment, nor a command line has them."""
    monkeypatch.setenv("SLURM_CONF", slurm.environment["SLURM_CONF"])
    storage = on_nodes(s3.storage()) | {"scratch": str(tmp_path / "scratch")}
    config = SlurmServiceConfig(max_jobs=1, poll_seconds=0.3, storage=storage)
    service = SlurmService(config, tmp_path / "root", runner=nodes.SCRIPTED)
    service.validate()
    handle = service.submit(script("job", ["epoch", 1], ["report", "report.json"], ["epoch", 2]))
    try:
        assert finish(service, handle, 90).exit_code == 0, service.status(handle)
        assert epochs(service, handle) == [(1, False), (2, False)]
        assert (tmp_path / "root/jobs/job/report.json").exists()
        files = [path for path in (tmp_path / "root").rglob("*") if path.is_file()]
        assert [path.suffix for path in files].count(".sh") == 1
        assert not [path for path in files if SECRET.encode() in path.read_bytes()]
        assert not [process for process in psutil.process_iter() if SECRET in " ".join(_words(process))]
    finally:
        service.cleanup()
    assert s3.objects() == []
