"""The local service with `reuse: false`, where each job is a program of its own, keeps the contract too."""

import signal
import sys
from pathlib import Path

import psutil
import pytest

from nasflow.config.services.local import LocalServiceConfig
from nasflow.load_target import load_target
from nasflow.system.process_id import process_id
from nasflow.testing.training_service import TrainingServiceContract, await_status, finish, numbers, script, until
from nasflow.training_service.base import JobStatus
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState
from tests.training_service.local.jobs import kill_worker, report

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"


def make(root: Path, slots: int = 1) -> LocalService:
    return LocalService(LocalServiceConfig(slots=slots, idle_timeout=60, reuse=False), root, runner=SCRIPTED)


class TestLocalPrograms(TrainingServiceContract):
    factory = f"{__file__}:make"

    def lose(self, service, handle):
        kill_worker(service, handle)


@pytest.fixture
def root(tmp_path):
    yield tmp_path / "root"
    make(tmp_path / "root").cleanup()


def test_each_job_is_a_program_of_its_own(root):
    service = make(root)
    first, second = report(service, "first"), report(service, "second")
    state = LocalState(root)
    with state.lock():
        (worker,) = state.workers()
    for job in (first, second):
        assert (job["parent"], job["session"]) == (worker.process.pid, job["pid"])
        assert "nasflow.training_service.local.worker" not in job["modules"]
        assert job["environment"]["NASFLOW_LOCAL_WORKER"] == worker.token
    handle = service.submit(script("job", ["wait", "never"]))
    await_status(service, handle, JobStatus.RUNNING)
    (pid,) = until(lambda: numbers(service, "jobs/job/runs"), "start of the job")
    assert psutil.Process(pid).cmdline()[-2:] == [SCRIPTED, str(root / "jobs/job/job.json")]
    if sys.platform == "linux":
        assert int(Path(f"/proc/{pid}/oom_score_adj").read_text()) >= 500
    worker.process.send(signal.SIGKILL)
    until(lambda: process_id(pid) is None, "end of the job with its worker")


def test_a_file_beside_the_space_does_not_hide_a_library_from_jobs(root, tmp_path, monkeypatch):
    """The controller, which imports it last, trains with the library; so do its jobs."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "pydantic.py").write_text("raise RuntimeError('not the library')\n")
    (tmp_path / "space.py").write_text("import beside\n\n\ndef build(pick):\n    return beside.NAME\n")
    (tmp_path / "beside.py").write_text("NAME = 'beside'\n")
    assert load_target("space.py:build", tmp_path)(None) == "beside"
    service = make(root)
    handle = service.submit(script("job", ["epoch", 1]))
    assert finish(service, handle).exit_code == 0, service.log_tail(handle)
