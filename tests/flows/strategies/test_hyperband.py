"""Searches by ASHA and Hyperband: promoted trials go on from their checkpoints, killed or not."""

import json
import os
import signal
from collections import Counter
from typing import Any

import pytest

from tests.flows.recovery.test_kill import wait_for_epochs
from tests.flows.searches import Searches

DIGITS = {"target": "nasflow.evaluator.data:DigitsRows"}
CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [4, 6, 8, 12, 16, 24, 32, 48], "delay": 0.005}},
    "evaluator": {"kind": "classification", "data": DIGITS, "epochs": 4, "schedule": {"name": "cosine"}},
    "strategy": {"kind": "asha", "reduction_factor": 2},
    "budget": {"rounds": 3, "trials_per_round": 4},
    "merge": {"fuse": "never"},  # so that results do not depend on who trains beside whom
    "training_service": {"kind": "local", "slots": 2},
    "retry": {"delay_seconds": [0.1]},
}


def trained_epochs(searches: Searches, study: str) -> Counter[tuple[int, int]]:
    events = searches.events(study)
    return Counter((e["trial"], e["epoch"]) for e in events if e["kind"] == "epoch" and not e["replayed"])


def by_architecture(shown: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """The trials of each architecture, the first to end first."""
    found: dict[str, list[dict[str, Any]]] = {}
    for trial in shown["trials"]:
        base = {label: value for label, value in trial["architecture"].items() if label != "stop_after"}
        found.setdefault(str(sorted(base.items())), []).append(trial)
    return found


@pytest.mark.long
def test_promoted_trials_go_on(searches: Searches, undisturbed: list[dict[str, Any]]) -> None:
    """Also if the controller is killed meanwhile. No epoch of an architecture is trained twice."""
    searches.write("search", **CONFIG)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 7)
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    searches.run("run", "search.yaml")
    assert searches.json("leaderboard", "search") == undisturbed
    shown = searches.json("show", "search")
    assert {trial["status"] for trial in shown["trials"]} == {"trained"}
    trained = trained_epochs(searches, "search")
    assert max(trained.values()) == 1
    families = by_architecture(shown)
    assert max(len(family) for family in families.values()) == 3, "one was promoted twice"
    for family in families.values():
        epochs = [epoch for trial in family for number, epoch in trained if number == trial["number"]]
        assert sorted(epochs) == list(range(1, family[-1]["architecture"]["stop_after"] + 1))
        curves = [trial["metrics"]["val_accuracy"] for trial in family]
        assert len(curves) == len(set(map(str, family)))
    searches.run("export", "search", "--top", 3, "--out", "models")
    exported = [json.loads(file.read_text()) for file in searches.folder.glob("models/*/architecture.json")]
    assert len({architecture["width"] for architecture in exported}) == 3, "an architecture is exported once"


@pytest.mark.long
def test_trials_are_promoted_after_rounds_ahead_that_had_nothing_new(searches: Searches) -> None:
    """A round that knows no results yet, in a space without more architectures, does not end the search."""
    space = {"target": "spaces.py:mixed", "params": {"widths": [4, 6, 8, 12]}}
    budget = {"rounds": 9, "trials_per_round": 4, "rounds_ahead": 1}
    searches.write("search", **{**CONFIG, "space": space, "budget": budget, "training_service": {"kind": "debug"}})
    searches.run("run", "search.yaml")
    shown = searches.json("show", "search")
    begun = [(trial["round"], trial["architecture"]["stop_after"]) for trial in shown["trials"]]
    assert begun == [(0, 1)] * 4 + [(2, 2), (2, 2), (4, 4)]
    assert len(shown["rounds"]) == 7, "the last two had nothing to try"


@pytest.mark.long
@pytest.mark.parametrize("kind", ["asha", "hyperband"])
def test_as_good_as_full_training_with_a_third_of_the_epochs(kind: str, searches: Searches) -> None:
    """On digits, against the same architectures, each trained to its end."""
    space = {"target": "spaces.py:mixed", "params": {"widths": [4, 6, 8, 12, 16, 20, 24, 28, 32, 40, 48, 56, 64]}}
    rates = {"optimizer": {"lr": {"pick": [1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2]}}}
    evaluator = {"kind": "classification", "data": DIGITS, "epochs": 27, **rates}
    objective = [{"metric": "val_accuracy", "direction": "maximize"}]
    common = {"space": space, "objectives": objective, "training_service": {"kind": "local", "slots": 2}}
    budget = {"rounds": 8, "trials_per_round": 9}
    searches.write("quick", evaluator=evaluator, strategy={"kind": kind}, budget=budget, **common)
    searches.run("run", "quick.yaml")
    begun = by_architecture(searches.json("show", "quick"))
    given = [
        {label: value for label, value in family[0]["architecture"].items() if label != "stop_after"}
        for family in begun.values()
    ]
    budget = {"rounds": 1, "trials_per_round": len(given)}
    searches.write("full", evaluator=evaluator, begin_with=given, budget=budget, **common)
    searches.run("run", "full.yaml")
    quick, full = (sum(trained_epochs(searches, study).values()) for study in ("quick", "full"))
    assert full == 27 * len(given)
    assert quick <= 0.35 * full, (quick, full)
    best = [searches.json("leaderboard", study)[0]["val_accuracy"] for study in ("quick", "full")]
    assert best[0] >= best[1] - 0.012, best  # four of 360 images
