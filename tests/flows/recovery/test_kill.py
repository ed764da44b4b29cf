"""kill -9 of the controller or of a worker in the middle of a round: nothing is lost and nothing is done twice."""

import contextlib
import fcntl
import os
import signal
import sqlite3
import time
from collections import Counter
from contextlib import closing
from typing import Any

import psutil
import pytest

from nasflow.study.study import Study
from nasflow.training_service.local.state import ROOT_VARIABLE, LocalState
from nasflow.training_service.machine.processes import carriers
from tests.flows.forked_commands import ForkedProgram
from tests.flows.searches import Searches

CONFIG: dict[str, Any] = {
    "space": {
        "target": "spaces.py:mixed",
        "params": {"widths": [8, 10, 12, 14, 16, 18, 20, 22, 24, 26], "delay": 0.008},
    },
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 5},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 2, "trials_per_round": 4},
    "training_service": {"kind": "local", "slots": 2},
    "retry": {"delay_seconds": [0.1]},
}

DEBUG: dict[str, Any] = {"training_service": {"kind": "debug"}}


def wait_for_epochs(searches: Searches, count: int) -> None:
    """Until `count` epochs were trained."""
    deadline = time.monotonic() + 120
    while sum(event["kind"] == "epoch" for event in searches.events("search")) < count:
        assert time.monotonic() < deadline, "the search trains nothing"
        time.sleep(0.02)


def processes(searches: Searches) -> list[psutil.Process]:
    """What lives of the search's workers, of the program that forked them, and of their jobs."""
    return carriers(ROOT_VARIABLE, str(searches.folder / "nasflow-runs" / "search"))


def workers(searches: Searches) -> list[psutil.Process]:
    """The live worker processes of the search."""
    state = LocalState(searches.folder / "nasflow-runs" / "search")
    with state.lock():
        return [psutil.Process(worker.process.pid) for worker in state.workers() if worker.process.alive()]


def assert_nothing_lost_or_repeated(searches: Searches, undisturbed: list[dict[str, Any]]) -> None:
    assert searches.json("leaderboard", "search") == undisturbed
    trained = Counter(
        (e["trial"], e["epoch"]) for e in searches.events("search") if e["kind"] == "epoch" and not e["replayed"]
    )
    assert max(trained.values()) == 1, "an epoch that had been told was trained again"
    shown = searches.json("show", "search")
    assert [trial["status"] for trial in shown["trials"]] == ["trained"] * 8
    assert [trial["epochs"] for trial in shown["trials"]] == [5] * 8
    study = Study.load(f"sqlite:///{searches.folder}/nasflow.db", "search")
    rows = {number: [record.epoch for record in records] for number, records in study.epochs(range(8)).items()}
    study.close()
    assert rows == {number: [1, 2, 3, 4, 5] for number in range(8)}, "one row of metrics a trial and epoch"
    assert [record["state"] for record in shown["rounds"]] == ["completed"] * 2
    assert not processes(searches), "workers are left behind"


@pytest.mark.parametrize("epochs_before", [pytest.param(1, marks=pytest.mark.long), 26])
def test_kill_of_the_controller(searches, undisturbed, epochs_before):
    searches.write("search", **CONFIG)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, epochs_before)
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    assert workers(searches), "the jobs should live on without their controller"
    searches.run("run", "search.yaml")
    assert_nothing_lost_or_repeated(searches, undisturbed)


@pytest.mark.long
def test_kill_of_a_worker(searches, undisturbed):
    searches.write("search", **CONFIG)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 6)
    workers(searches)[0].kill()
    output, _ = controller.communicate(timeout=240)
    assert controller.returncode == 0, output
    assert_nothing_lost_or_repeated(searches, undisturbed)
    lost = [attempt for attempt in searches.json("show", "search")["attempts"] if attempt["restarts"]]
    assert lost and all(attempt["state"] == "succeeded" for attempt in lost)


@pytest.mark.long
def test_kill_of_a_job(searches, undisturbed):
    """From outside, and not for want of memory: the batch is lost to its infrastructure, no trial is blamed."""
    searches.write("search", **CONFIG)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 6)
    jobs = [child for worker in workers(searches) for child in worker.children()]
    jobs[0].kill()
    output, _ = controller.communicate(timeout=240)
    assert controller.returncode == 0, output
    assert_nothing_lost_or_repeated(searches, undisturbed)
    assert all(attempt["kind"] == "batch" for attempt in searches.json("show", "search")["attempts"])


def interrupt(searches, epochs, config):
    """Press Ctrl-C in a search after so many epochs."""
    searches.write("search", **config)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, epochs)
    controller.send_signal(signal.SIGINT)
    output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 130, output
    assert "the same command continues from here" in output


def test_interrupt_leaves_a_resumable_study(searches, undisturbed):
    interrupt(searches, 6, CONFIG)
    assert not processes(searches)
    searches.run("run", "search.yaml")
    assert_nothing_lost_or_repeated(searches, undisturbed)


def test_interrupt_of_a_job_in_the_controller(searches):
    """It ends at its next batch, with its finished epochs; the next run goes on from these, and counts no retry."""
    interrupt(searches, 1, CONFIG | {"budget": {"rounds": 1, "trials_per_round": 4}, **DEBUG})
    events = searches.events("search")
    assert sum(event["kind"] == "epoch" for event in events) < 20
    assert events[-1]["kind"] == "ended" and events[-1]["infrastructure"]
    searches.run("run", "search.yaml")
    trained = [
        (e["trial"], e["epoch"]) for e in searches.events("search") if e["kind"] == "epoch" and not e["replayed"]
    ]
    assert sorted(trained) == [(trial, epoch) for trial in range(4) for epoch in range(1, 6)]
    (attempt,) = searches.json("show", "search")["attempts"]
    assert (attempt["state"], attempt["restarts"]) == ("succeeded", 0)


@pytest.mark.long
def test_a_second_controller_is_refused(searches):
    searches.write("search", **CONFIG | {"evaluator": {**CONFIG["evaluator"], "epochs": 10_000}})
    first = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 1)
    output = searches.run("run", "search.yaml", code=2)
    assert f"another controller runs study 'search' (process {first.pid} on " in output
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=60)


def stop_between_two_steps(searches: Searches, controller: ForkedProgram) -> None:
    """SIGSTOP a controller where it holds none of the locks that another process on this machine would wait for."""
    while True:
        controller.send_signal(signal.SIGSTOP)
        with (
            contextlib.suppress(BlockingIOError, sqlite3.OperationalError),
            closing(sqlite3.connect(searches.folder / "nasflow.db", timeout=0.1, isolation_level=None)) as database,
            (searches.folder / "nasflow-runs" / "search" / "local.lock").open("ab") as lock,
        ):
            database.execute("BEGIN IMMEDIATE")
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        controller.send_signal(signal.SIGCONT)
        time.sleep(0.05)


@pytest.mark.long
def test_a_search_taken_over_from_a_controller_that_stood_still(searches, undisturbed):
    searches.write("search", **CONFIG)
    first = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 6)
    stop_between_two_steps(searches, first)
    second = searches.start("run", "search.yaml", "--take-over")
    with closing(Study.load(f"sqlite:///{searches.folder}/nasflow.db", "search")) as study:
        while (holder := study.controller()) is None or holder.pid != second.pid:
            assert second.poll() is None
            time.sleep(0.1)
    first.send_signal(signal.SIGCONT)
    output, _ = first.communicate(timeout=60)
    assert first.returncode == 2, output
    assert f"error: study 'search' was taken over by process {second.pid} on " in output
    output, _ = second.communicate(timeout=240)
    assert second.returncode == 0, output
    assert_nothing_lost_or_repeated(searches, undisturbed)
