"""Searches whose trials are trained on several devices each."""

import json
import os
import signal
import time
from typing import Any

import psutil
import pytest

from tests.flows.searches import Searches

CONFIG: dict[str, Any] = {
    "space": {"target": "nasflow.space.ready:mlp", "params": {"in_features": 64, "classes": 10}},
    "evaluator": {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:DigitsRows"},
        "epochs": 3,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "parallel": {"strategy": "fsdp", "devices": 2},
    },
    "budget": {"rounds": 1, "trials_per_round": 3},
    "objectives": [{"metric": "val_accuracy", "direction": "maximize"}],
    "retry": {"delay_seconds": [0.1]},
    "training_service": {"kind": "local", "slots": 2},
}


@pytest.mark.long
def test_a_rank_is_killed_and_all_go_on(searches: Searches) -> None:
    searches.write("wide", **CONFIG)
    reason = " ".join(searches.run("plan", "wide.yaml", code=2).split())
    assert "evaluator.parallel trains every trial on 2 devices, in a job of its own: there is nothing to plan" in reason
    with searches.start("run", "wide.yaml") as process:
        while not (killed := _ranks(searches)):
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        os.kill(killed[-1].pid, signal.SIGKILL)
        output = process.communicate(timeout=300)[0]
        assert process.wait() == 0, output
    trials = searches.json("show", "wide")["trials"]
    assert [trial["status"] for trial in trials] == ["trained"] * 3
    told = [
        (event["trial"], event["epoch"])
        for event in searches.events("wide")
        if event["kind"] == "epoch" and not event["replayed"]
    ]
    assert sorted(told) == [(trial, epoch) for trial in range(3) for epoch in (1, 2, 3)], "each epoch once"
    searches.run("export", "wide", "--out", "best")
    assert list((searches.folder / "best").rglob("*.safetensors"))


def sizes(**evaluator: Any) -> dict[str, Any]:
    """A search over models of 0.6 k to 10 M parameters."""
    return CONFIG | {
        "space": {"target": "spaces.py:sizes", "params": {"widths": [8, 64, 512, 3000]}},
        "strategy": {"kind": "grid"},
        "budget": {"rounds": 1, "trials_per_round": 4},
        "evaluator": {**CONFIG["evaluator"], "epochs": 2, "precision": "64-true", **evaluator},
    }


@pytest.mark.long
def test_large_trials_on_several_devices_beside_small_ones_that_are_merged(searches: Searches) -> None:
    parallel = {"strategy": "ddp", "devices": 2, "min_parameters": 1_000_000}
    searches.write("both", **sizes(parallel=parallel), merge={"fuse": "always"})
    searches.write("alone", **sizes(parallel=None), merge={"enabled": False})
    planned = " ".join(searches.run("plan", "both.yaml").split())
    assert "3 trials in one job" in planned
    for study in ("both", "alone"):
        searches.run("run", f"{study}.yaml")
    jobs = [json.loads(file.read_text()) for file in (searches.folder / "nasflow-runs/both/jobs").glob("*/job.json")]
    forms = {
        tuple(member["trial"] for member in job["members"]): (
            job["evaluator"]["parallel"] is not None,
            {member["device"] for member in job["members"]},
        )
        for job in jobs
    }
    assert forms == {(3,): (True, {0}), (0, 1, 2): (False, {0, 1})}, "the small ones are on both devices, too"
    boards = [searches.json("leaderboard", study) for study in ("both", "alone")]
    both, alone = ({row["trial"]: row["val_accuracy"] for row in board} for board in boards)
    assert [row["trial"] for row in boards[0]] == [row["trial"] for row in boards[1]]
    assert both == pytest.approx(alone, abs=1e-9)


@pytest.mark.long
def test_a_trial_that_runs_out_of_memory_by_itself_gets_several_devices(searches: Searches) -> None:
    parallel = {"strategy": "fsdp", "devices": 2, "min_parameters": 1_000_000}
    searches.write(
        "large",
        **CONFIG
        | {
            "space": {"target": "spaces.py:large"},
            "strategy": {"kind": "grid"},
            "budget": {"rounds": 1, "trials_per_round": 2},
            "evaluator": {**CONFIG["evaluator"], "parallel": parallel},
        },
    )
    searches.run("run", "large.yaml")
    shown = searches.json("show", "large")
    assert [trial["status"] for trial in shown["trials"]] == ["trained"] * 2
    batch, alone = shown["attempts"]
    assert (batch["kind"], alone["kind"], alone["state"]) == ("batch", "alone", "succeeded")
    assert "OutOfMemoryError: CUDA out of memory" in batch["error"]
    (large,) = alone["members"]
    jobs = {file.parent.name: json.loads(file.read_text()) for file in searches.folder.rglob("job.json")}
    assert {"alone" in name: job["evaluator"]["parallel"] is not None for name, job in jobs.items()} == {
        False: False,
        True: True,
    }
    trained = [
        event["epoch"]
        for event in searches.events("large")
        if event["kind"] == "epoch" and event["trial"] == large and not event["replayed"]
    ]
    assert sorted(trained) == [1, 2, 3], "each is reported once, also the one that it had ended by itself"


def _ranks(searches: Searches) -> list[psutil.Process]:
    """The ranks of a job of which an epoch is on record."""
    if not any(event["kind"] == "epoch" for event in searches.events("wide")):
        return []
    pids = [event["pid"] for event in searches.events("wide") if event["kind"] == "started"]
    for pid in reversed(pids):
        try:
            children = psutil.Process(pid).children()
        except psutil.NoSuchProcess:
            continue
        if len(children) == 2:
            return children
    return []
