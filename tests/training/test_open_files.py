"""A job that can open no more files for a while blames no trial, and keeps every checkpoint."""

import multiprocessing
import os
import resource
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest

from nasflow.checkpoint.bundle import read_state
from nasflow.checkpoint.store import CheckpointStore
from nasflow.job import disk_full
from nasflow.job.events import Ended, Epoch, Event, Evicted, Final
from nasflow.job.spec import MemberSpec
from nasflow.training.member.member import Member
from nasflow.training.member_maker import MemberMaker
from nasflow.training.runner import run_job_file
from tests.training.recovery.test_killed import SPEC, events_of, write_job

ONE_BY_ONE = SPEC.model_copy(update={"places": 1})


@contextmanager
def no_files() -> Iterator[None]:
    """Let this process open no more files."""
    taken = []
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (psutil.Process().num_fds() + 8, hard))
    with suppress(OSError):
        while True:
            taken.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for file in taken:
            os.close(file)


def run_without_files(job_file: Path, trial: int) -> list[Event]:
    """Run a job in a process of its own that can open no more files from the building of a trial on."""
    process = multiprocessing.get_context("fork").Process(target=_run, args=(job_file, trial))
    process.start()
    process.join(60)
    assert process.exitcode is not None
    return events_of(job_file)


def _run(job_file: Path, trial: int) -> None:
    make = MemberMaker.make
    lacking = no_files()

    def make_without(self: MemberMaker, spec: MemberSpec, number: int) -> Member:
        if spec.trial == trial:
            while len(finals(events_of(job_file))) < trial:  # those before it are being saved
                time.sleep(0.01)
            lacking.__enter__()
            with Path(os.devnull).open():  # as its code may do
                pass
        return make(self, spec, number)

    MemberMaker.make = make_without  # type: ignore[method-assign]
    disk_full.SECONDS = 0.0  # what can't be saved is not waited for
    os._exit(run_job_file(job_file))


@pytest.mark.parametrize("trial", [0, 2])
def test_no_trial_of_several_is_blamed(tmp_path: Path, trial: int) -> None:
    """And the job goes on where it was."""
    job_file, undisturbed = write_job(tmp_path / "a", ONE_BY_ONE), write_job(tmp_path / "b", ONE_BY_ONE)
    ended = run_without_files(job_file, trial)[-1]
    assert isinstance(ended, Ended)
    assert ended.infrastructure
    assert "can open no more files" in str(ended.error)
    assert run_job_file(job_file) == 0
    assert run_job_file(undisturbed) == 0
    found, wanted = events_of(job_file), events_of(undisturbed)
    assert not [event for event in found if isinstance(event, Evicted)]
    assert finals(found) == finals(wanted)
    fresh = Counter((event.trial, event.epoch) for event in found if isinstance(event, Epoch) and not event.replayed)
    assert set(fresh.values()) == {1}


def finals(events: list[Event]) -> dict[int, dict[str, float]]:
    return {event.trial: event.metrics for event in events if isinstance(event, Final)}


def test_a_trial_alone_is_to_blame(tmp_path: Path) -> None:
    job_file = write_job(tmp_path, SPEC.model_copy(update={"members": SPEC.members[:1]}))
    (evicted,) = [event for event in run_without_files(job_file, 0) if isinstance(event, Evicted)]
    assert "Too many open files" in evicted.error


def test_a_checkpoint_that_cannot_be_opened_is_not_called_damaged(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "00003")
    store.save(1, {"epoch": 1})
    file = store.path(1)
    with no_files(), pytest.raises(OSError, match="Too many open files"):
        read_state(file, "00003", 1)
    assert store.load_newest() == {"epoch": 1}
