"""The best trial, and no other, is scored on test data: once, at the end."""

import json
from typing import Any

import pytest

from tests.flows.searches import Searches

UNSEEN = {"target": "spaces.py:unseen"}


def config(**evaluator: Any) -> dict[str, Any]:
    data = {"target": "nasflow.evaluator.data:DigitsRows"}
    return {
        "space": {"target": "spaces.py:mixed", "params": {"kinds": ["ok"], "widths": [8, 10, 12, 14]}},
        "evaluator": {"kind": "classification", "data": data, "epochs": 2, **evaluator},
        "budget": {"rounds": 1, "trials_per_round": 2},
        "retry": {"delay_seconds": [0.1], "batch": 1, "alone": 0},
        "training_service": {"kind": "local", "slots": 1},
    }


def times(searches: Searches, study: str) -> list[int]:
    """The trials that were tested, one for each time."""
    attempts = searches.json("show", study)["attempts"]
    return [trial for attempt in attempts if attempt["kind"] == "test" for trial in attempt["members"]]


def test_the_best_trial_is_tested_once(searches: Searches) -> None:
    searches.write("tested", **config(test_data=UNSEEN))
    searches.run("run", "tested.yaml")
    [best, other] = searches.json("leaderboard", "tested")
    assert 0 < best["test_accuracy"] <= 1
    assert best["test_loss"] > 0
    assert other["test_accuracy"] is None
    assert times(searches, "tested") == [best["trial"]]
    assert "test_accuracy" in searches.run("leaderboard", "tested")
    run = searches.server.newest_run("nas-search")
    assert run["state"]["type"] == "COMPLETED"
    [confusion] = searches.server.post("/artifacts/filter", {"artifacts": {"key": {"any_": ["tested-confusion"]}}})
    assert f"Trial {best['trial']} on test data" in confusion["data"]
    assert "| recall |" in confusion["data"]
    searches.run("run", "tested.yaml")
    assert times(searches, "tested") == [best["trial"]], "not again"
    jobs = [json.loads(file.read_text()) for file in searches.folder.glob("nasflow-runs/tested/jobs/*/job.json")]
    (copies,) = {job["copies"] for job in jobs}
    assert copies.startswith("tested@"), "no other study of this name has its copies there"


@pytest.mark.long
def test_test_data_may_come_later(searches: Searches) -> None:
    searches.write("later", **config())
    searches.run("run", "later.yaml")
    before = searches.json("leaderboard", "later")
    searches.write("later", **config(test_data=UNSEEN))
    searches.run("run", "later.yaml")
    [best, _] = after = searches.json("leaderboard", "later")
    assert best["test_accuracy"] is not None
    assert [row["trial"] for row in after] == [row["trial"] for row in before]


def test_a_test_that_fails_is_shown_and_fails_no_search(searches: Searches) -> None:
    searches.write("broken", **config(test_data={"target": "spaces.py:broken_in_the_end"}))
    output = searches.run("run", "broken.yaml")
    assert "it breaks in its second batch" in output
    shown = searches.json("show", "broken")
    [test] = [attempt for attempt in shown["attempts"] if attempt["kind"] == "test"]
    assert "it breaks in its second batch" in test["error"]
    assert test["failure"] == "trial"
    assert {trial["status"] for trial in shown["trials"]} == {"trained"}


def test_bad_test_data_is_refused_before_anything_trains(searches: Searches) -> None:
    searches.write("bad", **config(test_data={"target": "spaces.py:nothing"}))
    output = searches.run("run", "bad.yaml", code=2)
    assert "spaces.py' has no 'nothing'" in output
