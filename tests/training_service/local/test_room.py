"""The local service's files on a full disk."""

import errno
import threading
import time

import pytest

from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ServiceError
from nasflow.job import disk_full
from nasflow.job.spec import job_dir
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.local.service import LocalService
from nasflow.training_service.local.state import LocalState

LOST = JobState(status=JobStatus.LOST, reason="its worker was killed")


@pytest.fixture
def full(tmp_path):
    """What is written next of the job's outcome goes to a disk that is full."""
    folder = job_dir(tmp_path, "job")
    folder.mkdir(parents=True)
    aside = folder / "exit.json.new"
    aside.symlink_to("/dev/full")
    return aside


def test_an_outcome_waits_for_room(tmp_path, full, caplog):
    state = LocalState(tmp_path)
    threading.Timer(0.3, full.unlink).start()
    begin = time.monotonic()
    with state.lock():
        state.settle("job", LOST)
    assert time.monotonic() - begin >= 0.3
    assert state.outcome("job") == LOST
    assert "wait for disk space" in caplog.text


def test_a_disk_that_stays_full_is_one_clear_error(tmp_path, full, monkeypatch):
    monkeypatch.setattr(disk_full, "SECONDS", 0.0)
    monkeypatch.setattr(disk_full, "POLL", 0.01)
    state = LocalState(tmp_path)
    with state.lock(), pytest.raises(OSError) as raised:
        state.settle("job", LOST)
    assert raised.value.errno == errno.ENOSPC
    (tmp_path / "local" / "queue").mkdir(parents=True)
    (tmp_path / "local" / "queue" / "000000001.job").touch()
    with pytest.raises(ServiceError, match=r"No space left on device.*make room"):
        LocalService(LocalServiceConfig(), tmp_path).cancel(JobHandle(service="local", job_id="job"))
