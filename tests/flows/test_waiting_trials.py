"""More trials than train at a time: one job in which the others wait; with a pruner, a crash, and a lost worker."""

import os
import signal
import time
from typing import Any

import pytest

from tests.flows.searches import Searches

WIDTHS = [8, 10, 12, 14, 16, 18, 20, 22]


def config(kinds: list[str], widths: list[int], max_members: int, delay: float = 0.0, **changes: Any) -> dict[str, Any]:
    params = {"kinds": kinds, "widths": widths, "delay": delay}
    return {
        "space": {"target": "spaces.py:mixed", "params": params},
        "evaluator": {
            "kind": "classification",
            "data": {"target": "nasflow.evaluator.data:DigitsRows"},
            "epochs": 4,
        },
        "strategy": {"kind": "grid"},
        "budget": {"rounds": 1, "trials_per_round": 20},
        "retry": {"delay_seconds": [0.1], "alone": 0},
        "merge": {"max_members": max_members, "fuse": "never"},  # so that results are equal bit by bit
        "training_service": {"kind": "local", "slots": 1},
        **changes,
    }


def results(shown: dict[str, Any]) -> dict[str, Any]:
    return {
        str(trial["architecture"]): (trial["status"], trial["metrics"], trial["epochs"]) for trial in shown["trials"]
    }


@pytest.mark.long
def test_a_crash_is_blamed_on_those_that_had_begun(searches: Searches) -> None:
    """Of eight trials two train at a time. The crash of one leaves those that wait to the next job of the batch."""
    searches.write("crashing", **config(["ok", "exit"], WIDTHS[:4], max_members=2))
    searches.run("run", "crashing.yaml")
    shown = searches.json("show", "crashing")
    statuses = {(trial["architecture"]["kind"], trial["status"]) for trial in shown["trials"]}
    assert len(shown["trials"]) == 8
    assert statuses == {("ok", "trained"), ("exit", "failed")}
    batch, *alone = shown["attempts"]
    assert len(batch["members"]) == 8
    again = sorted(trial for attempt in alone for trial in attempt["members"])
    failed = {trial["number"] for trial in shown["trials"] if trial["status"] == "failed"}
    assert failed <= set(again)
    assert len(again) == len(set(again)) <= 2 * (batch["restarts"] + 1)
    together = {event["trial"] for event in searches.events("crashing") if event["kind"] == "entered"}
    assert together, "some waited"


@pytest.mark.long
def test_a_lost_worker_changes_no_verdict(searches: Searches) -> None:
    pruner = {"kind": "halving", "reduction_factor": 2}
    searches.write("whole", **config(["ok"], WIDTHS, max_members=3, pruner=pruner))
    searches.write("lost", **config(["ok"], WIDTHS, max_members=3, delay=0.01, pruner=pruner))
    searches.run("run", "whole.yaml")
    expected = searches.json("show", "whole")
    statuses = [trial["status"] for trial in expected["trials"]]
    assert set(statuses) == {"trained", "stopped_early"}
    assert [len(attempt["members"]) for attempt in expected["attempts"]] == [8]

    with searches.start("run", "lost.yaml") as process:
        while len(ended := [event for event in searches.events("lost") if event["kind"] == "final"]) < 2:
            assert process.poll() is None, process.said()
            time.sleep(0.02)
        os.kill(next(event["pid"] for event in searches.events("lost") if event["kind"] == "started"), signal.SIGKILL)
        output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert all(event["pruned"] for event in ended)
    shown = searches.json("show", "lost")
    assert [attempt["restarts"] for attempt in shown["attempts"]] == [1]
    assert results(shown) == results(expected)


def test_more_jobs_than_slots(searches: Searches) -> None:
    """They wait for the slot, one after the other."""
    values = config(["ok"], WIDTHS[:6], max_members=3)
    searches.write("many", **values | {"merge": {**values["merge"], "jobs_per_slot": 3}})
    searches.run("run", "many.yaml")
    shown = searches.json("show", "many")
    assert [len(attempt["members"]) for attempt in shown["attempts"]] == [2, 2, 2]
    assert {trial["status"] for trial in shown["trials"]} == {"trained"}
