"""Rounds that overlap (`budget.rounds_ahead`): what they propose, killed or not, and how their jobs share the slots."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from nasflow.flows.budget import is_finished
from nasflow.study.records import AttemptKind
from nasflow.study.study import Study
from tests.flows.recovery.test_kill import processes, wait_for_epochs
from tests.flows.searches import Searches
from tests.flows.session.test_control import CANCELLING, paused, rounds_of, set_state, wait_until

ROUNDS, TRIALS = 4, 4
CONFIG: dict[str, Any] = {
    "space": {
        "target": "spaces.py:mixed",
        "params": {"widths": [8, 10, 12, 14, 16, 18, 20, 22, 24, 26], "delay": 0.006},
    },
    "evaluator": {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:DigitsRows"},
        "epochs": {"pick": [1, 6]},
    },
    "strategy": {"kind": "evolution", "population": 4, "tournament": 2},
    "budget": {"rounds": ROUNDS, "trials_per_round": TRIALS, "rounds_ahead": 1},
    "merge": {"enabled": False},
    "training_service": {"kind": "local", "slots": 2},
    "retry": {"delay_seconds": [0.1]},
}


def proposed(shown: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
    """Round and architecture of each trial."""
    return [(trial["round"], trial["architecture"]) for trial in shown["trials"]]


def results(shown: dict[str, Any]) -> list[tuple[str, int, dict[str, float]]]:
    return [(trial["status"], trial["epochs"], trial["metrics"]) for trial in shown["trials"]]


def overlapping(folder: Path) -> dict[str, Any]:
    """The config whose first trial to train waits, with one of the two slots, until one of the next round trains."""
    params = {**CONFIG["space"]["params"], "begun": str(folder / "begun"), "others": TRIALS}
    return {**CONFIG, "space": {"target": "spaces.py:overlapping", "params": params}}


@pytest.fixture(scope="module")
def undisturbed_ahead(tmp_path_factory, prefect_server) -> Searches:
    """A search whose rounds overlap, with its results."""
    searches = Searches(tmp_path_factory.mktemp("ahead"), prefect_server)
    searches.write("search", **overlapping(searches.folder))
    searches.run("run", "search.yaml")
    return searches


def test_a_round_trains_while_the_one_before_ends(undisturbed_ahead):
    shown = undisturbed_ahead.json("show", "search")
    assert [record["state"] for record in shown["rounds"]] == ["completed"] * ROUNDS
    assert [trial["status"] for trial in shown["trials"]] == ["trained"] * (ROUNDS * TRIALS)
    study = Study.load(f"sqlite:///{undisturbed_ahead.folder}/nasflow.db", "search")
    jobs = {number: study.batches(number) for number in range(ROUNDS)}
    rounds, seconds = study.rounds(), study.seconds_spent()
    study.close()
    ends = [record.ended_at for record in rounds]
    assert ends == sorted(ends)
    first_end = max(job.ended_at for job in jobs[0])
    assert min(job.started_at for job in jobs[1]) < first_end and rounds[1].started_at < first_end
    for first, third in zip(range(ROUNDS - 2), range(2, ROUNDS), strict=True):
        assert rounds[third].started_at >= rounds[first].ended_at
    assert seconds <= (ends[-1] - rounds[0].started_at).total_seconds() + 0.1, "time of two rounds counts once"
    server = undisturbed_ahead.server
    found = [(run["name"], run["state_type"]) for run in server.rounds_of(server.newest_run("nas-search"))]
    assert found == [(f"search: round {number}", "COMPLETED") for number in range(ROUNDS)]


@pytest.mark.long
def test_a_killed_search_proposes_the_same(searches, undisturbed_ahead):
    searches.write("search", **overlapping(searches.folder))
    for epochs in (2, 12, 30):
        controller = searches.start("run", "search.yaml")
        wait_for_epochs(searches, epochs)
        os.kill(controller.pid, signal.SIGKILL)
        controller.communicate()
    searches.run("run", "search.yaml")
    shown, expected = searches.json("show", "search"), undisturbed_ahead.json("show", "search")
    assert proposed(shown) == proposed(expected)
    assert results(shown) == results(expected)
    trained = [
        (e["trial"], e["epoch"]) for e in searches.events("search") if e["kind"] == "epoch" and not e["replayed"]
    ]
    assert len(trained) == len(set(trained)), "an epoch that had been told was trained again"
    assert [record["state"] for record in shown["rounds"]] == ["completed"] * ROUNDS
    assert not processes(searches)


def test_rounds_ahead_can_not_change_within_a_study(undisturbed_ahead):
    config = overlapping(undisturbed_ahead.folder)
    other = {**config, "budget": {**config["budget"], "rounds_ahead": 2}}
    path = undisturbed_ahead.write("search", **other)
    said = undisturbed_ahead.run("run", "search.yaml", code=2)
    path.write_text(path.read_text().replace("rounds_ahead: 2", "rounds_ahead: 1"))
    assert "budget.rounds_ahead is 1 on record, 2 in the config" in said


@pytest.mark.long
def test_known_architectures_and_an_exhausted_space(searches):
    """Rounds that repeat what an earlier one still trains take over its results, and a space without more ends all."""
    changes = {"space": {"target": "spaces.py:mixed", "params": {"widths": [8, 16]}}, "merge": {"enabled": True}}
    evaluator = {**CONFIG["evaluator"], "epochs": 1}
    common = {**CONFIG, **changes, "evaluator": evaluator, "training_service": {"kind": "debug"}}
    budget = {"rounds": 3, "trials_per_round": 3, "rounds_ahead": 2}
    searches.write("repeats", **common | {"strategy": {"kind": "tpe"}, "budget": budget})
    searches.run("run", "repeats.yaml")
    repeats = searches.json("show", "repeats")
    assert [trial["status"] for trial in repeats["trials"]] == ["trained"] * 9
    again = [trial for trial in repeats["trials"] if trial["replayed_from"] is not None]
    assert len(again) == 7 and {trial["round"] for trial in again} == {0, 1, 2}
    searches.write(
        "grid", **common | {"strategy": {"kind": "grid"}, "budget": budget | {"trials_per_round": 1, "rounds": 9}}
    )
    searches.run("run", "grid.yaml")
    grid = searches.json("show", "grid")
    assert [trial["status"] for trial in grid["trials"]] == ["trained"] * 2
    assert [record["state"] for record in grid["rounds"]] == ["completed"] * 5, "three found nothing more to try"
    study = Study.load(f"sqlite:///{searches.folder}/nasflow.db", "grid")
    assert is_finished(study)
    study.close()


def test_failed_trials_are_retried_while_others_train(searches):
    """Without rounds ahead, too."""
    params = {"kinds": ["raise", "ok"], "widths": [8, 10, 12], "delay": 0.006}
    changes = {"space": {"target": "spaces.py:mixed", "params": params}, "strategy": {"kind": "grid"}}
    evaluator = {**CONFIG["evaluator"], "epochs": 8}
    budget = {"rounds": 1, "trials_per_round": 6}
    searches.write("search", **CONFIG | changes | {"evaluator": evaluator, "budget": budget})
    searches.run("run", "search.yaml")
    shown = searches.json("show", "search")
    assert sorted(trial["status"] for trial in shown["trials"]) == ["failed"] * 3 + ["trained"] * 3
    study = Study.load(f"sqlite:///{searches.folder}/nasflow.db", "search")
    attempts = study.attempts()
    study.close()
    last_batch = max(attempt.ended_at for attempt in attempts if attempt.kind is AttemptKind.BATCH)
    alone = [attempt for attempt in attempts if attempt.kind is AttemptKind.ALONE]
    assert {attempt.members for attempt in alone} == {
        (t["number"],) for t in shown["trials"] if t["status"] == "failed"
    }
    assert min(attempt.started_at for attempt in alone) < last_batch


@pytest.mark.long
@pytest.mark.parametrize("how", ["ctrl-c", "sigterm", "cancelled round", "pause"])
def test_a_stopped_search_ends_all_its_rounds_and_goes_on(searches, undisturbed_ahead, how):
    searches.write("search", **overlapping(searches.folder))
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 4)
    run = searches.server.newest_run("nas-search")
    wait_until(lambda: len(rounds_of(searches.server, run)) > 1, "the rounds do not overlap")
    if how == "pause":
        set_state(searches.server, run, paused(600, suspended=False))
        wait_until(lambda: set(rounds_of(searches.server, run)) <= {"CANCELLED", "COMPLETED"}, "its rounds go on")
        wait_until(lambda: not processes(searches), "its jobs go on")
        searches.server.post(f"/flow_runs/{run['id']}/resume", {})
        code = 0
    elif how == "cancelled round":
        set_state(searches.server, searches.server.rounds_of(run)[-1], CANCELLING)
        code = 130
    else:
        number = signal.SIGINT if how == "ctrl-c" else signal.SIGTERM
        controller.send_signal(number)
        code = 130 if how == "ctrl-c" else 128 + number
    output, _ = controller.communicate(timeout=240)
    assert controller.returncode == code, output
    assert not processes(searches)
    if how != "pause":
        ended = [record["state"] for record in searches.json("show", "search")["rounds"]].count("completed")
        assert ended < ROUNDS
        searches.run("run", "search.yaml")
    shown, expected = searches.json("show", "search"), undisturbed_ahead.json("show", "search")
    assert proposed(shown) == proposed(expected)
    assert results(shown) == results(expected)
