"""Pods that share no folder with the controller keep the contract by an object store, whose credentials nobody sees."""

from pathlib import Path

import psutil
import pytest

from nasflow.job.events import parse_event
from nasflow.testing.training_service import epochs, finish, script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.local.service import RUNNER
from tests.handful import handful
from tests.object_store.far import FarNodesContract, far_disks, storage
from tests.object_store.s3 import KEY, SECRET
from tests.training import jobs

pytest.importorskip("kubernetes", reason="needs the Kubernetes client: install nasflow[kubernetes]")

from tests.training.wide.on_services import assert_goes_on_after_a_kill
from tests.training_service.kubernetes import service as of_tests
from tests.training_service.kubernetes.service import batch, core, pod_of

__all__ = ["batch", "core"]
# the first test to start may have to build Kubernetes
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800), pytest.mark.usefixtures("server")]


def make(root: Path, slots: int = 1, **options):
    """A service whose storage is in the environment, as another process makes it."""
    return of_tests.make(root, slots, storage=storage(), **options)


@pytest.fixture(autouse=True)
def scratch(s3, tmp_path, monkeypatch):
    """The nodes' own disks."""
    return far_disks(s3, tmp_path, monkeypatch)


@pytest.fixture
def root(scratch, tmp_path):
    yield tmp_path / "it's a $(root) 100%d"
    make(tmp_path / "it's a $(root) 100%d").cleanup()


@handful
class TestObjectStoreOfPods(FarNodesContract):
    """The rest: TestKubernetesService, and TestObjectStore of the tests' own nodes."""

    factory = f"{__file__}:make"

    @pytest.fixture(autouse=True)
    def cluster(self, server):
        self.kubernetes = server

    def lose(self, service, handle):
        """Its node is short of memory."""
        self.kubernetes.nodes[0].evict(
            pod_of(self.kubernetes, service, handle), "The node was low on resource: memory."
        )


def test_a_trial_on_two_devices(root, tmp_path):
    """Its epochs go to the store and back."""
    assert_goes_on_after_a_kill(make(root, runner=RUNNER), root, tmp_path / "solo")


def test_members_go_on_from_their_checkpoints_when_their_pod_is_deleted(root, server, core, scratch):
    """The user's code comes to the pods, too."""
    service = make(root, runner=RUNNER)
    endless = jobs.evaluator(epochs=10**6)
    spec = jobs.make_job("spaces.py:net", endless, jobs.sample("spaces.py:net", endless, 2))
    first = service.submit(spec)
    until(lambda: _epochs(service, first), "epochs", 120)
    core.delete_namespaced_pod(pod_of(server, service, first), "default")
    state = until(lambda: s if (s := service.status(first)).status.finished else None, "its loss", 120)
    assert state.status is JobStatus.LOST
    until(lambda: not list(scratch.glob("nasflow-*/run-*")), "end of the pod's program", 60)
    done = _epochs(service, first)
    more = jobs.evaluator(epochs=max(done.values()) + 2)
    second = service.submit(spec.model_copy(update={"job_id": "second", "evaluator": more}))
    assert finish(service, second, 120).exit_code == 0, service.log_tail(second)
    (started,) = [event for event in _events(service, second) if event.kind == "started"]
    assert all(started.resumed[trial] >= epoch > 0 for trial, epoch in done.items())
    assert set(_epochs(service, second).values()) == {max(done.values()) + 2}


def _epochs(service, handle):
    """The last epoch of each trial."""
    return {event.trial: event.epoch for event in _events(service, handle) if event.kind == "epoch"}


def _events(service, handle):
    return [parse_event(line) for line in service.events(handle)[0]]


def test_credentials_are_in_the_study_s_secret_and_nowhere_else(root, server, core, s3, caplog):
    """Neither in other objects, nor in requests on record, files, objects of the store, command lines and logs."""
    from kubernetes import client

    for logger in ("nasflow", "kubernetes", "urllib3"):  # botocore's own has the id of the key
        caplog.set_level("DEBUG", logger)
    service = make(root)
    service.validate()
    handle = service.submit(script("job", ["epoch", 1], ["report", "report.json"], ["wait", "go"]))
    until(lambda: epochs(service, handle), "first epoch", 60)
    until((root / "jobs/job/report.json").exists, "report", 60)
    pod_of(server, service, handle)
    everything = str(
        [
            each.to_dict()
            for each in (
                client.CoreV1Api(server.api).list_namespaced_pod("default"),
                client.BatchV1Api(server.api).list_namespaced_job("default"),
                client.CoreV1Api(server.api).list_namespaced_config_map("default"),
                client.CoreV1Api(server.api).list_namespaced_event("default"),
            )
        ]
    )
    assert "s3://bucket/searches" in everything
    files = [path for path in root.parent.rglob("*") if path.is_file()]
    assert any(path.name == "report.json" for path in files)
    kept = [path.read_bytes() for path in files]
    kept += [s3.client.get_object(Bucket="bucket", Key=name)["Body"].read() for name in s3.objects()]
    kept += [(server.folder / "audit.log").read_bytes(), server.nodes[0].logs()]
    for secret in (KEY, SECRET):
        assert secret not in everything and secret not in caplog.text
        assert not [each for each in kept if secret.encode() in each]
        assert not [process for process in psutil.process_iter() if secret in " ".join(_words(process))]
    (made,) = _secrets(core)
    assert set(made.data) == {"NASFLOW_STORAGE_SECRETS"}
    for job in root.parent.glob("scratch/nasflow-*/run-*/jobs/*"):
        (job.parents[1] / "go").touch()
    assert finish(service, handle, 60).exit_code == 0
    service.cleanup()
    assert _secrets(core) == []


def _secrets(core):
    return [each for each in core.list_namespaced_secret("default").items if each.metadata.name.startswith("nasflow-")]


def _words(process):
    try:
        return process.cmdline()
    except psutil.Error:
        return []
