"""Candidates that hang: the search goes on without them, and the others come to the same results."""

import time
from typing import Any

import pytest

from tests.flows.forked_commands import run_forked
from tests.flows.recovery.test_faulty_trials import task_runs
from tests.flows.searches import Searches

WIDTHS = [8, 12, 16, 24]
EMIT = """
import sys
from prefect.events import emit_event
for resource in sys.argv[1:]:
    emit_event("nasflow.trial.stop", resource={"prefect.resource.id": resource})
"""
ERROR = "a trial took longer than limits.trial allows (15s)"


def config(kinds: list[str], **changes: Any) -> dict[str, Any]:
    return {
        "space": {"target": "spaces.py:mixed", "params": {"kinds": kinds, "widths": WIDTHS}},
        "evaluator": {
            "kind": "classification",
            "data": {"target": "nasflow.evaluator.data:DigitsRows"},
            "epochs": 3,
            "precision": "64-true",
        },
        "strategy": {"kind": "grid"},
        "budget": {"rounds": 1, "trials_per_round": 8},
        "retry": {"delay_seconds": [0.1], "alone": 5},
        "training_service": {"kind": "local", "slots": 1},
        **changes,
    }


def trials(searches: Searches, study: str) -> dict[tuple[str, int], dict[str, Any]]:
    shown = searches.json("show", study)["trials"]
    return {(trial["architecture"]["kind"], trial["architecture"]["width"]): trial for trial in shown}


@pytest.mark.long
def test_a_candidate_that_hangs_and_ignores_sigterm(searches: Searches) -> None:
    others = [{"kind": "ok", "width": width} for width in WIDTHS[:2]]
    three = {"rounds": 1, "trials_per_round": 3}
    hangs = {"begin_with": [*others, {"kind": "hang", "width": 8}], "budget": three, "limits": {"trial": "15s"}}
    answers = {"begin_with": [*others, {"kind": "calm", "width": 8}], "budget": three}
    searches.write("hangs", **config(["ok", "hang"], **hangs))
    searches.write("answers", **config(["ok", "calm"], **answers))
    searches.run("run", "hangs.yaml")
    searches.run("run", "answers.yaml")
    with_it, without = trials(searches, "hangs"), trials(searches, "answers")
    for width in WIDTHS[:2]:
        assert with_it["ok", width]["status"] == "trained"
        assert with_it["ok", width]["metrics"] == without["ok", width]["metrics"], "to the last bit"
    hung = with_it["hang", 8]
    assert hung["status"] == "failed" and hung["error"].startswith(ERROR)
    assert "spaces.py" in hung["error"], "it says where the candidate was"
    assert {trial["status"] for trial in without.values()} == {"trained"}

    name = "train trial 2 of round 0 alone"
    run = task_runs(searches, "hangs", {name})[name]
    assert run["run_count"] == 1, "alone it hung again; once more would show nothing"
    assert ERROR in run["state"]["message"]


@pytest.mark.long
def test_a_process_of_a_loader_that_hangs(searches: Searches) -> None:
    data = {"target": "slow_data.py:digits", "params": {"hangs": {"pick": [False, True]}}}
    evaluator = {**config([])["evaluator"], "data": data}
    space = {"target": "spaces.py:mixed", "params": {"kinds": ["ok"], "widths": WIDTHS[:2]}}
    four = {"rounds": 1, "trials_per_round": 4}
    searches.write("loader", **config([], space=space, evaluator=evaluator, budget=four, limits={"epoch": "15s"}))
    searches.run("run", "loader.yaml")
    by_data: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    for trial in searches.json("show", "loader")["trials"]:
        by_data[trial["architecture"]["data.params.hangs"]].append(trial)
    assert [trial["status"] for trial in by_data[False]] == ["trained"] * 2
    assert [trial["status"] for trial in by_data[True]] == ["failed"] * 2
    assert all("limits.epoch allows (15s)" in trial["error"] for trial in by_data[True])


def test_a_trial_that_trains_for_too_long_stops_after_an_epoch(searches: Searches) -> None:
    space = {"target": "spaces.py:mixed", "params": {"kinds": ["ok"], "widths": WIDTHS, "delay": 0.02}}
    slow = {"space": space, "training_service": {"kind": "debug"}, "limits": {"trial": "0.1s"}}
    searches.write("slow", **config([], **slow, budget={"rounds": 1, "trials_per_round": 2}))
    searches.run("run", "slow.yaml")
    for trial in searches.json("show", "slow")["trials"]:
        assert (trial["status"], trial["epochs"]) == ("stopped_early", 1)
        assert trial["metrics"]["val_accuracy"] > 0


@pytest.mark.long
def test_hours_that_are_over_stop_the_round_and_larger_ones_go_on(searches: Searches) -> None:
    space = {"target": "spaces.py:uneven", "params": {"delay": 0.45}}  # the slow one waits for some 40 s
    budget = {"rounds": 2, "trials_per_round": 2, "on_timeout": "stop"}
    evaluator = {**config([])["evaluator"], "test_data": {"target": "spaces.py:unseen"}}
    service = {"kind": "local", "slots": 2}
    rest = {"space": space, "evaluator": evaluator, "merge": {"enabled": False}, "training_service": service}
    searches.write("hours", **config([], **rest, budget={**budget, "hours": 0.008}))
    printed = searches.run("run", "hours.yaml")
    note = "budget.hours is over: a larger one goes on with 1 unfinished trials"
    assert note in printed
    by_kind = {trial["architecture"]["kind"]: trial for trial in searches.json("show", "hours")["trials"]}
    assert by_kind["fast"]["status"] == "trained" and by_kind["slow"]["status"] == "running"
    assert "test_accuracy" in by_kind["fast"]["metrics"], "the best trial is tested though the hours are over"
    assert note in searches.run("run", "hours.yaml"), "nothing is left to do"
    searches.write("hours", **config([], **rest, budget={**budget, "hours": 1}))
    assert "budget.hours" not in searches.run("run", "hours.yaml")
    assert {trial["status"] for trial in searches.json("show", "hours")["trials"]} == {"trained"}


@pytest.mark.long
def test_trials_are_stopped_by_a_command_and_by_an_event(searches: Searches) -> None:
    gate = searches.folder / "gate"  # of the first epoch
    space = {"target": "watched_spaces.py:gated", "params": {"gate": str(gate)}}
    searches.write("four", **config([], space=space, budget={"rounds": 1, "trials_per_round": 4}))
    stops = [
        "nasflow.trial.four.more.3",
        "nasflow.trial.for.3",
        "nasflow.trial.four.2",
    ]  # only the last names one of this study
    marks = [searches.folder / f"nasflow-runs/four/trials/0000{trial}/stop" for trial in (1, 2)]
    with searches.start("run", "four.yaml") as process:
        while not any(event["kind"] == "started" for event in searches.events("four")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        printed = searches.run("stop-trial", "four", "1")
        assert "trial 1 of study 'four' ends after its present epoch" in " ".join(printed.split())
        emitted = run_forked(["python", "-c", EMIT, *stops], searches.folder, searches.server.env)
        assert emitted.returncode == 0, emitted.stderr
        while not all(mark.exists() for mark in marks):
            assert process.poll() is None, process.communicate()
            time.sleep(0.1)
        gate.touch()
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    shown = {trial["number"]: trial for trial in searches.json("show", "four")["trials"]}
    assert {number: trial["status"] for number, trial in shown.items()} == {
        0: "trained",
        1: "stopped_early",
        2: "stopped_early",
        3: "trained",
    }
    assert {trial["epochs"] for trial in shown.values() if trial["status"] == "stopped_early"} == {1}
    refused = searches.run("stop-trial", "four", "0", code=2)
    assert "trial 0 of study 'four' is trained: only one in training can be stopped" in " ".join(refused.split())
