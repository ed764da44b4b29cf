"""Several services at once keep the contract, and choose by what is measured."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nasflow.config.services.storage import SharedFolderConfig
from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec
from nasflow.testing.training_service import TrainingServiceContract, await_status, epochs, finish, numbers, script
from nasflow.training_service.base import JobHandle, JobStatus
from nasflow.training_service.several import service as several
from nasflow.training_service.several.records import SeveralRecords
from nasflow.training_service.several.service import SeveralServices
from tests.training_service.cluster.scripted import Scripted
from tests.training_service.several.services import Second, local, make

_KILLED = """
import os, signal, sys
from pathlib import Path
from nasflow.job.spec import JobSpec
from tests.training_service.several.services import make
service = make(Path(sys.argv[1]), 2)
service.prepare()
second = service._services["second"]
real = second.submit
def submit(spec):
    if sys.argv[2] == "after":
        real(spec)
    os.kill(os.getpid(), signal.SIGKILL)
second.submit = submit
service.submit(JobSpec.model_validate_json(sys.argv[3]))
"""


def release(root, name):
    """The jobs of the second service look for it in its folder."""
    for folder in (root, root / "second"):
        folder.mkdir(exist_ok=True)
        (folder / name).touch()


class TestSeveralServices(TrainingServiceContract):
    factory = f"{Path(__file__).with_name('services.py')}:make"

    def release(self, root, name):
        release(root, name)

    def lose(self, service, handle):
        """The worker of the job."""
        (pid,) = numbers(service, f"jobs/{handle.job_id}/runs")
        parent = psutil.Process(pid).parent()
        assert parent is not None
        parent.kill()


@pytest.fixture
def root(tmp_path):
    yield tmp_path / "root"
    make(tmp_path / "root", 2).cleanup()


def where(service, handle):
    state = finish(service, handle)
    assert state.exit_code == 0
    return state.slot


def test_the_faster_service_comes_first_and_one_that_is_not_measured_before_it(root):
    service = make(root, 2)
    service.prepare()
    steps = [["epoch", 1], ["wait", "go"], ["epoch", 2]]
    slow = service.submit(script("slow", *steps))
    await_status(service, slow, JobStatus.RUNNING)
    time.sleep(1.5)
    release(root, "go")
    assert where(service, slow) == "local/cpu-0"  # the first of the list
    assert where(service, service.submit(script("fast", *steps))) == "second/cpu-0"
    assert where(service, service.submit(script("next", *steps))) == "second/cpu-0"
    assert where(make(root, 2), make(root, 2).submit(script("later"))) == "second/cpu-0"
    both = [service.submit(script(f"both-{i}", ["wait", "on"])) for i in range(2)]
    for handle in both:
        await_status(service, handle, JobStatus.RUNNING)
    release(root, "on")
    assert [where(service, handle) for handle in both] == ["second/cpu-0", "local/cpu-0"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_controller_killed_between_choice_and_submission_starts_a_job_once(root, when):
    spec = script("once", ["epoch", 2])
    busy = make(root, 2)
    busy.prepare()
    finish(busy, busy.submit(script("first", ["epoch", 1])))  # so that the second service, not measured, is chosen
    done = subprocess.run([sys.executable, "-c", _KILLED, root, when, spec.model_dump_json()], check=False)
    assert done.returncode == -signal.SIGKILL
    service = make(root, 2)
    service.prepare()
    handle = service.submit(spec)
    assert where(service, handle) == "second/cpu-0"
    assert len(numbers(service, "jobs/once/runs")) == 1
    assert epochs(service, handle) == [(2, False)]


def test_a_lost_job_goes_on_at_another_service(root):
    service = make(root, 2)
    service.prepare()
    spec = script("lost", ["epoch", 1], ["wait", "go"], ["epoch", 2])
    handle = service.submit(spec)
    await_status(service, handle, JobStatus.RUNNING)
    (pid,) = numbers(service, "jobs/lost/runs") or (0,)
    while not epochs(service, handle):
        time.sleep(0.01)
    psutil.Process(pid or numbers(service, "jobs/lost/runs")[0]).parent().kill()
    assert await_status(service, handle, JobStatus.LOST).slot == "local/cpu-0"
    release(root, "go")
    service.submit(spec)
    assert where(service, handle) == "second/cpu-0"
    assert epochs(service, handle) == [(1, False), (1, True), (2, False)]


def broken(root):
    """Its workers exit at once, which it says at the next calls."""
    service = local(root)
    for layout in service._layouts.values():
        layout.command[-1:] = ["--no-such-option"]
    return service


def test_a_service_that_only_fails_gives_its_jobs_to_another(root, monkeypatch):
    monkeypatch.setattr(several, "_PATIENCE", 0.5)
    service = SeveralServices({"local": broken(root), "second": Second(root)}, root)
    assert where(service, service.submit(script("job", ["epoch", 1]))) == "second/cpu-0"
    assert where(service, service.submit(script("next"))) == "second/cpu-0"


def test_if_all_services_fail_so_does_this(root):
    service = SeveralServices({"local": broken(root)}, root)
    with pytest.raises(ServiceError, match=r"^training_service\.0: the worker of slot cpu-0 exits during startup"):
        finish(service, service.submit(script("job")))


def test_a_job_of_a_service_that_is_no_longer_in_the_config_goes_on_elsewhere(root):
    spec = script("job", ["epoch", 1], ["wait", "go"], ["epoch", 2])
    first = make(root, 2)
    handle = first.submit(spec)
    await_status(first, handle, JobStatus.RUNNING)
    service = SeveralServices({"second": Second(root)}, root)
    service.prepare()
    state = service.status(handle)
    assert (state.status, state.reason) == (JobStatus.LOST, "local is no longer among the training services")
    local(root).cleanup()
    release(root, "go")
    service.submit(spec)
    assert where(service, handle) == "second/cpu-0"


def test_cancelling_what_waits_for_a_service(root):
    service = make(root)
    first = service.submit(script("first", ["wait", "go"]))
    waiting = service.submit(script("waiting"))
    assert service.status(waiting).status is JobStatus.PENDING
    assert [file.name.partition(".")[2] for file in (root / "several/queue").iterdir()] == ["waiting"]
    service.cancel(waiting)
    assert service.status(waiting).status is JobStatus.CANCELLED
    release(root, "go")
    finish(service, first)
    assert service.status(JobHandle(service="any", job_id="nobody")).status is JobStatus.LOST


def test_a_job_that_moves_from_nodes_with_other_paths_keeps_its_own(tmp_path, root):
    """A cluster whose nodes see another path writes that into job.json."""
    (root / "code").mkdir(parents=True)

    class Refusing(Scripted):
        def _give(self, run):
            assert run.spec().base_dir == Path("/elsewhere/root/code")
            raise ServiceError("training_service: the cluster refuses such jobs")

    cluster = Refusing(root, storage=SharedFolderConfig(local=str(tmp_path), remote="/elsewhere"))
    service = SeveralServices({"cluster": cluster, "local": local(root)}, root)
    spec = script("job", ["epoch", 1]).model_copy(update={"base_dir": root / "code"})
    assert where(service, service.submit(spec)) == "local/cpu-0"
    assert JobSpec.model_validate_json((root / "jobs/job/job.json").read_bytes()) == spec


def test_the_time_of_a_job_is_of_this_machines_clock_alone(tmp_path):
    """That of a file server may go wrong."""
    records = SeveralRecords(tmp_path)
    with records.service_lock():
        records.enqueue(script("job"))
        assert records.take("any") == "job"
        assert records.given("any", "job") is None
        records.note_given("any", "job")
        os.utime(records.claims("any") / "job", (0, 0))
        assert abs((records.given("any", "job") or 0) - time.time()) < 5
