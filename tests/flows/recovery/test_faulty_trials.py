"""Candidates that raise, diverge and kill their process, beside healthy ones."""

from typing import Any

import pytest

from nasflow.testing.service_jobs import until
from tests.flows.searches import Searches

WIDTHS = [8, 16]
EVALUATOR = {
    "kind": "classification",
    "data": {"target": "nasflow.evaluator.data:DigitsRows"},
    "epochs": 3,
    "precision": "64-true",
}


def config(kinds: list[str], **changes: Any) -> dict[str, Any]:
    return {
        "space": {"target": "spaces.py:mixed", "params": {"kinds": kinds, "widths": WIDTHS}},
        "evaluator": EVALUATOR,
        "strategy": {"kind": "grid"},
        "budget": {"rounds": 1, "trials_per_round": 8},
        "retry": {"delay_seconds": [0.1], "alone": 5},
        "training_service": {"kind": "local", "slots": 2},
        **changes,
    }


@pytest.fixture(scope="module")
def faulty(tmp_path_factory, prefect_server):
    """A search with one bad candidate of each kind at each width, and one without any."""
    searches = Searches(tmp_path_factory.mktemp("faulty"), prefect_server)
    searches.write("faulty", **config(["ok", "raise", "nan", "exit"]))
    searches.write("healthy", **config(["ok"], training_service={"kind": "debug"}))
    searches.run("run", "faulty.yaml")
    searches.run("run", "healthy.yaml")
    return searches


def trials(searches: Searches, study: str) -> dict[tuple[str, int], dict[str, Any]]:
    shown = searches.json("show", study)["trials"]
    return {(trial["architecture"]["kind"], trial["architecture"]["width"]): trial for trial in shown}


def test_healthy_trials_score_as_without_the_bad_ones(faulty):
    mixed, pure = trials(faulty, "faulty"), trials(faulty, "healthy")
    assert len(mixed) == 8 and len(pure) == 2
    for width in WIDTHS:
        assert mixed["ok", width]["status"] == "trained"
        # in other company other kernels may run, which round otherwise
        assert mixed["ok", width]["metrics"] == pytest.approx(pure["ok", width]["metrics"], rel=1e-9)


def test_bad_trials_end_as_failed_with_their_error(faulty):
    expected = {"raise": "this candidate always raises", "nan": "training loss is nan", "exit": "exited with code 1"}
    for (kind, width), trial in trials(faulty, "faulty").items():
        if kind != "ok":
            assert trial["status"] == "failed", (kind, width)
            assert expected[kind] in trial["error"]


def test_prefect_shows_bad_trials_retried_alone_but_not_for_ever(faulty):
    shown = faulty.json("show", "faulty")
    bad = {trial["number"] for trial in shown["trials"] if trial["status"] == "failed"}
    names = {f"train trial {number} of round 0 alone" for number in bad}
    by_name = task_runs(faulty, "faulty", names)
    for name in names:
        assert by_name[name]["run_count"] == 2, "one retry shows that it repeats itself; five more would show nothing"
    alone = {int(name.split()[2]) for name in by_name if name.startswith("train trial")}
    assert alone == bad, "members of a batch whose process died of another's code go on together"


def task_runs(searches: Searches, study: str, names: set[str]) -> dict[str, dict[str, Any]]:
    """By name, once those of `names` have failed; the server records task runs some seconds after they happen."""

    def recorded() -> dict[str, dict[str, Any]]:
        runs = runs_of_study(searches, study)
        return runs if names <= {name for name, run in runs.items() if run["state_type"] == "FAILED"} else {}

    return until(recorded, f"record of {names}")


def runs_of_study(searches: Searches, study: str) -> dict[str, dict[str, Any]]:
    server = searches.server
    rounds = server.rounds_of(server.newest_run("nas-search", study))
    body = {"task_runs": {"flow_run_id": {"any_": [run["id"] for run in rounds]}}, "limit": 200}
    return {run["name"]: run for run in server.post("/task_runs/filter", body)}


def test_retry_trains_only_the_failed(faulty):
    before = faulty.json("show", "faulty")
    failed = {trial["number"] for trial in before["trials"] if trial["status"] == "failed"}
    output = faulty.run("retry", "faulty", code=1)
    assert f"0 of {len(failed)} trials trained" in output
    after = faulty.json("show", "faulty")
    new = after["attempts"][len(before["attempts"]) :]
    assert {member for attempt in new for member in attempt["members"]} == failed
    assert all(attempt["kind"] == "alone" for attempt in new)
    assert after["trials"] == before["trials"]


def test_a_round_without_a_scored_trial_is_a_failed_round(searches):
    searches.write(
        "hopeless", **config(["raise"], retry={"delay_seconds": [0.1], "alone": 0}, training_service={"kind": "debug"})
    )
    output = searches.run("run", "hopeless.yaml", code=1)
    assert "no trial of study 'hopeless' could be scored" in output
    assert [record["state"] for record in searches.json("show", "hopeless")["rounds"]] == ["failed"]
    runs = searches.server.post("/flow_runs/filter", {"flow_runs": {"name": {"like_": "hopeless"}}})
    assert {run["name"]: run["state_type"] for run in runs} == {"hopeless": "FAILED", "hopeless: round 0": "FAILED"}
