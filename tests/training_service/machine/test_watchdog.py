"""Limits of a job, judged by what it writes of its activity; the clock is set by hand."""

import json
import struct
import time

import pytest

from nasflow.job import activity
from nasflow.training_service.machine import watchdog as module
from nasflow.training_service.machine.watchdog import Watchdog

NONE = -1


class Clock:
    """The monotonic clock that the watchdog sees."""

    def __init__(self, now=1000.0):
        self.now = now

    def monotonic(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


class Job:
    """A job's files, and a watchdog that has looked every second so far."""

    def __init__(self, folder, clock, **limits):
        self.file, self.clock = folder / activity.FILE, clock
        (folder / "job.json").write_text(json.dumps({"limits": limits}))
        self.watchdog = Watchdog(folder / "job.json")

    def write(self, trial=NONE, since=0.0, progress=0.0, epoch=None, longest=0.0):
        times = [since, progress, NONE * 1e-9 if epoch is None else epoch, longest]
        self.file.write_bytes(struct.pack("<5q", trial, *(round(1e9 * value) for value in times)))

    def after(self, seconds):
        """Look every second for so long; return the limit that was exceeded, and when."""
        for _ in range(seconds):
            self.clock.now += 1
            if exceeded := self.watchdog.exceeded():
                return exceeded.limit
        return None


def test_no_limit_but_stalled(tmp_path, clock):
    job = Job(tmp_path, clock)
    assert job.after(3600) is None, "before its first epoch a job may prepare data for six times as long"
    assert job.after(10) == "stalled"


def test_start(tmp_path, clock):
    job = Job(tmp_path, clock, start=30, stalled=None)
    assert job.after(30) is None
    assert job.after(2) == "start"
    job = Job(tmp_path, clock, start=30)
    job.write(progress=clock.now, since=clock.now)
    assert job.after(30) is None and job.after(2) == "start"
    job = Job(tmp_path, clock, start=30)
    job.write(progress=clock.now + 20, since=clock.now, epoch=clock.now + 20)
    assert job.after(300) is None


def test_epoch_and_who_runs(tmp_path, clock):
    job = Job(tmp_path, clock, epoch=10, trial=60, stalled=None)
    job.write(progress=clock.now, since=clock.now, epoch=clock.now + 5)
    assert job.after(15) is None
    assert job.after(2) == "epoch"
    job = Job(tmp_path, clock, trial=60, stalled=None)
    job.write(trial=4, progress=clock.now, since=clock.now, epoch=clock.now)
    assert job.after(60) is None and job.after(2) == "trial"


def test_job(tmp_path, clock):
    job = Job(tmp_path, clock, job="1m")
    job.write(progress=clock.now + 3600, since=clock.now, epoch=clock.now)
    assert job.after(60) is None
    exceeded = None
    while exceeded is None:
        clock.now += 1
        exceeded = job.watchdog.exceeded()
    assert exceeded.limit == "job" and exceeded.reason == "the job took longer than limits.job allows (1m)"


def test_stalled_waits_for_five_of_the_longest_epochs(tmp_path, clock):
    job = Job(tmp_path, clock, stalled=10)
    job.write(progress=clock.now, since=clock.now, epoch=clock.now, longest=20)
    assert job.after(110) is None
    assert job.after(2) == "stalled"


def test_a_file_of_an_earlier_start_says_nothing(tmp_path, clock):
    Job(tmp_path, clock).write(trial=4, since=10.0, progress=10.0, epoch=10.0, longest=0.1)
    assert Job(tmp_path, clock, trial=1, epoch=1).after(60) is None


def test_time_in_which_the_watchdog_itself_was_stopped_does_not_count(tmp_path, clock):
    job = Job(tmp_path, clock, epoch=10, stalled=10)
    job.write(progress=clock.now, since=clock.now, epoch=clock.now)
    assert job.after(5) is None
    clock.now += 600
    assert job.after(10) is None, "the job was stopped as well, and goes on now"
    assert job.after(3) == "epoch"


@pytest.mark.parametrize("content", [None, b"", b"\xff", b"[]", b'{"limits": 7}', b'{"limits": {"start": "soon"}}'])
def test_of_a_damaged_spec_it_has_the_defaults(tmp_path, clock, content):
    if content is not None:
        (tmp_path / "job.json").write_bytes(content)
    watchdog = Watchdog(tmp_path / "job.json")
    clock.now += 4.0
    assert watchdog.exceeded() is None


def test_it_reads_a_real_clock(tmp_path):
    (tmp_path / "job.json").write_text('{"limits": {"start": 0.3}}')
    watchdog = Watchdog(tmp_path / "job.json")
    began = time.monotonic()
    while (exceeded := watchdog.exceeded()) is None:
        time.sleep(0.01)
    assert exceeded.limit == "start" and 0.3 <= time.monotonic() - began < 5
