"""A process that keeps the lock of a study's folder does not keep others waiting for ever."""

import errno
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ServiceError
from nasflow.testing.service_jobs import script
from nasflow.training_service.files import locking
from nasflow.training_service.files.file_queue import JobRecords
from nasflow.training_service.local.service import LocalService

HOLDS = """
import sys, time
from pathlib import Path
from nasflow.training_service.files.file_queue import JobRecords
with JobRecords(Path(sys.argv[1]), "local").lock():
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLDS, str(tmp_path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_stopped_holder_is_named(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(locking, "_STOPPED", 0.1)
    service = LocalService(LocalServiceConfig(slots=1), tmp_path)
    os.kill(holder.pid, signal.SIGSTOP)
    for call in (lambda: service.submit(script("job")), service.cleanup, service.prepare):
        with pytest.raises(ServiceError, match=rf"process {holder.pid}, which is stopped; continue it \(kill -CONT"):
            call()


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP], ids=os.strerror)
def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch, number):
    def refuse(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    service = LocalService(LocalServiceConfig(slots=1), tmp_path)
    with pytest.raises(ServiceError, match=r"^work_dir: the file system of .*local.lock has no file locks \(flock: "):
        service.prepare()


def test_one_that_is_slow_is_waited_for(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(locking, "_STOPPED", 0.1)
    threading.Timer(2.0, holder.kill).start()
    begin = time.monotonic()
    with JobRecords(tmp_path, "local").service_lock():
        assert time.monotonic() - begin > 1


def test_one_that_never_releases_it_is_named(tmp_path, holder, monkeypatch):
    monkeypatch.setattr(locking, "_ALIVE", 0.1)
    with (
        pytest.raises(ServiceError, match=rf"process {holder.pid}, which does not release it"),
        JobRecords(tmp_path, "local").service_lock(),
    ):
        pytest.fail("it is held")


def holding(root: Path) -> tuple[threading.Thread, threading.Event]:
    """A thread that holds the lock until the event is set."""
    holds, leaves = threading.Event(), threading.Event()

    def hold() -> None:
        with JobRecords(root, "local").service_lock():
            holds.set()
            leaves.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    holds.wait()
    return thread, leaves


def test_threads_wait_for_each_other_without_a_limit(tmp_path, monkeypatch):
    """So no message asks to kill the search itself because other calls of a slow cluster came first."""
    monkeypatch.setattr(locking, "_ALIVE", 0.1)
    monkeypatch.setattr(locking, "_LOOK", 0.1)
    thread, leaves = holding(tmp_path)
    threading.Timer(1.0, leaves.set).start()
    with JobRecords(tmp_path, "local").service_lock():
        assert leaves.is_set()
    thread.join()


def test_a_forked_process_does_not_wait_for_threads_that_it_lacks(tmp_path):
    """Once the parent's thread has released the file's lock, the child gets it."""
    thread, leaves = holding(tmp_path)
    child = os.fork()
    if child == 0:
        with JobRecords(tmp_path, "local").service_lock():
            os._exit(7)
    leaves.set()
    thread.join()
    deadline = time.monotonic() + 30
    while (end := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if end == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(end[1]) == 7
