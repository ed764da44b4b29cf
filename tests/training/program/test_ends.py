"""A job's end, however it comes, ends the trial's processes, and what was reported by then is not lost."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from nasflow.job.events import Ended, Epoch, Event
from nasflow.job.spec import program_dir
from nasflow.training.program import turn
from nasflow.training.program.job import ProgramJob
from nasflow.training.runner import run_job_file
from tests.flows.forked_commands import ForkedProgram, start_forked
from tests.training.program.jobs import command, curve, events_of, function, make_job, train, write_job

PARENT = """
import subprocess
child = subprocess.Popen(['sleep', '1000'], start_new_session=True)
Path('pids').write_text(f'{os.getpid()} {child.pid}')
report(loss=1)
Path('second').touch()
time.sleep(1000)
"""
COUNTS = """
state = folder / 'state'
for epoch in range(int(state.read_text() if state.exists() else 0) + 1, 5):
    if epoch == 3 and not Path('go').exists():
        Path('second').touch()
        time.sleep(1000)
    report(epoch=epoch, loss=epoch)
    state.write_text(str(epoch))
"""
KINDS = {
    "function": function("parent"),
    "deaf function": function("deaf"),
    "command": command(PARENT),
    "deaf command": command(f"signal.signal(signal.SIGTERM, signal.SIG_IGN){PARENT}"),
}


def until(true: Callable[[], bool], runner: ForkedProgram | None = None) -> None:
    deadline = time.monotonic() + 120
    while not true():
        assert runner is None or runner.poll() is None, f"the job ended too early: {runner.said()}"
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start(job_file: Path, folder: Path) -> ForkedProgram:
    """Run a job up to what it does after its first report."""
    runner = start_forked(["python", "-m", "nasflow.training.runner", job_file], Path.cwd(), os.environ)
    until(lambda: (folder / "second").exists() and len(told(job_file)) > 0, runner)
    return runner


def told(job_file: Path) -> list[float | None]:
    return curve(events_of(job_file)) if job_file.with_name("events.jsonl").exists() else []


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("kind", "number"),
    [
        pytest.param(kind, number, marks=[] if (kind, number) == ("command", signal.SIGKILL) else pytest.mark.long)
        for kind in KINDS
        for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGINT)
    ],
)
def test_no_process_outlives_the_job(tmp_path: Path, kind: str, number: signal.Signals) -> None:
    job_file = write_job(tmp_path, make_job(KINDS[kind], tmp_path))
    runner = start(job_file, tmp_path)
    runner.send_signal(number)
    runner.wait()
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    until(lambda: all(map(is_gone, pids)))
    ends = [event for event in events_of(job_file) if isinstance(event, Ended)]
    assert [(end.infrastructure, end.preempted) for end in ends] == [(True, True)] * (number == signal.SIGTERM)
    assert curve(events_of(job_file)) == [1.0]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_a_job_that_is_ended_goes_on_and_repeats_nothing(tmp_path: Path, number: signal.Signals) -> None:
    job_file = write_job(tmp_path, make_job(command(COUNTS), tmp_path))
    runner = start(job_file, tmp_path)
    until(lambda: told(job_file) == [1, 2], runner)
    runner.send_signal(number)
    runner.wait()
    (tmp_path / "go").touch()
    assert run_job_file(job_file) == 0
    assert curve(events_of(job_file)) == [1, 2, 3, 4]


def test_a_program_that_is_slow_to_end_does_not_write_beside_its_successor(tmp_path: Path) -> None:
    job_file = write_job(tmp_path, make_job(function("lingers"), tmp_path))
    runner = start(job_file, tmp_path)
    until(lambda: len(told(job_file)) == 2, runner)
    runner.kill()
    runner.wait()
    (tmp_path / "go").touch()
    assert run_job_file(job_file) == 0
    assert curve(events_of(job_file)) == [0, 1, 3, 6]
    assert (tmp_path / "alive").stat().st_mtime_ns < (tmp_path / "began").stat().st_mtime_ns


def test_an_earlier_program_that_does_not_end_is_no_trials_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turn, "_WITHIN", 0.2)
    job_file = write_job(tmp_path, make_job(function("plain"), tmp_path))
    lock = program_dir(tmp_path, 0).with_name(".program.lock")
    lock.parent.mkdir(parents=True)
    with lock.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert run_job_file(job_file) == 1
    (end,) = (event for event in events_of(job_file) if isinstance(event, Ended))
    assert end.infrastructure and end.error is not None and f"fuser {lock}" in end.error
    assert run_job_file(job_file) == 0
    assert curve(events_of(job_file)) == [3, 2, 1]


@pytest.mark.long
def test_a_function_whose_job_is_killed_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    curves = []
    for name in ("whole", "killed"):
        folder = tmp_path / name
        folder.mkdir()
        job_file = write_job(folder, make_job(function("train", {"epochs": 300}, epochs=300), folder))
        if name == "killed":
            runner = subprocess.Popen([sys.executable, "-m", "nasflow.training.runner", str(job_file)])
            until(lambda file=job_file: len(told(file)) > 5)
            runner.kill()
            runner.wait()
        assert run_job_file(job_file) == 0
        curves.append(curve(events_of(job_file)))
    assert len(curves[0]) == 300 and curves[0] == curves[1]


@pytest.mark.long
def test_reports_that_came_after_the_last_checkpoint_count_and_the_function_goes_on(tmp_path: Path) -> None:
    jobs = {name: make_job(function("train", epochs=8, params={"epochs": 8}), tmp_path / name) for name in "ab"}
    for name in jobs:
        (tmp_path / name).mkdir()
    whole = curve(train(jobs["a"], tmp_path / "a"))

    events: list[Event] = []

    def crash(event: Event) -> None:
        events.append(event)
        if isinstance(event, Epoch) and event.epoch == 3:
            raise KeyboardInterrupt

    with contextlib.chdir(tmp_path / "b"), pytest.raises(KeyboardInterrupt):
        ProgramJob(jobs["b"], tmp_path / "b", crash).run()
    reports = program_dir(tmp_path / "b", 0) / "reports"
    there = len(reports.read_text().splitlines())
    with reports.open("a") as file:
        for epoch, loss in enumerate(whole[there:6], there + 1):
            file.write(json.dumps({"loss": loss, "epoch": epoch}) + "\n")
    events += train(jobs["b"], tmp_path / "b")
    assert curve(events) == whole


@pytest.mark.long
def test_a_guard_that_is_killed_takes_the_program_along(tmp_path: Path) -> None:
    job_file = write_job(tmp_path, make_job(command(PARENT), tmp_path))
    runner = start(job_file, tmp_path)
    program, child = (int(pid) for pid in (tmp_path / "pids").read_text().split())
    guard = psutil.Process(program).parent()
    assert guard is not None
    guard.kill()
    assert runner.wait() == 0
    until(lambda: is_gone(program))
    psutil.Process(child).kill()  # its session was its own, and the guard alone knew of it
