"""What the Prefect UI can tell of a search in which a trial fails alone, and then works."""

import json
import time
import urllib.request
from collections import Counter
from typing import Any

import pytest

from nasflow.flows.ui.run_page import STUDY_TAG
from tests.flows.searches import PrefectServer, Searches

STUDY = "paged"
KINDS = ["ok", "flaky", "raise"]


@pytest.fixture(scope="module")
def page(tmp_path_factory, prefect_server):
    """A search of one round with a candidate of each kind, and how far its batch's bar was seen; then run again."""
    searches = Searches(tmp_path_factory.mktemp("page"), prefect_server)
    searches.write(
        STUDY,
        space={
            "target": "flaky_spaces.py:flaky",
            "params": {"marks": str(searches.folder / "marks"), "kinds": KINDS, "delay": 0.02},
        },
        evaluator={
            "kind": "classification",
            "data": {"target": "nasflow.evaluator.data:DigitsRows"},
            "epochs": 4,
        },
        strategy={"kind": "grid"},
        objectives=[{"metric": "val_accuracy"}, {"metric": "val_loss", "direction": "minimize"}],
        budget={"rounds": 1, "trials_per_round": 3},
        retry={"delay_seconds": [0.1], "alone": 4},
        training_service={"kind": "local", "slots": 1},
    )
    seen = set()
    with searches.start("run", f"{STUDY}.yaml") as process:
        while process.poll() is None:
            for bar in artifacts(prefect_server, f"{STUDY}-round-0-batch-0"):
                seen.add(float(bar["data"]))
            time.sleep(0.2)
        assert process.returncode == 0, process.said()
    first = prefect_server.newest_run("nas-search", STUDY)
    searches.run("run", f"{STUDY}.yaml")
    return Page(searches, first, seen)


class Page:
    def __init__(self, searches: Searches, run: dict[str, Any], seen: set[float]):
        self.searches, self.server, self.run, self.seen = searches, searches.server, run, seen
        (self.round,) = self.server.rounds_of(run)
        shown = searches.json("show", STUDY)["trials"]
        self.trials = {trial["architecture"]["kind"]: trial["number"] for trial in shown}
        self.tasks = self.tasks_of_round(count=6)

    def tasks_of_round(self, count: int) -> dict[str, dict[str, Any]]:
        """By name, once `count` have ended; the server records them some seconds after they do."""
        deadline = time.monotonic() + 60
        while True:
            body = {"task_runs": {"flow_run_id": {"any_": [self.round["id"]]}}}
            runs = {run["name"]: run for run in self.server.post("/task_runs/filter", body)}
            if sum(run["state_type"] in ("COMPLETED", "FAILED") for run in runs.values()) >= count:
                return runs
            assert time.monotonic() < deadline, runs
            time.sleep(0.5)


def artifacts(server: PrefectServer, key: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = server.post("/artifacts/filter", {"artifacts": {"key": {"any_": [key]}}})
    return found


def events(server: PrefectServer, prefix: str, enough: int, **of: Any) -> list[dict[str, Any]]:
    """Events by their names' beginning and by resources, the oldest first, once there are `enough`."""
    deadline = time.monotonic() + 60
    while True:
        wanted = {"event": {"prefix": [prefix]}, "order": "ASC", **of}
        found: list[dict[str, Any]] = server.post("/events/filter", {"filter": wanted, "limit": 50})["events"]
        if len(found) >= enough or time.monotonic() > deadline:
            return found
        time.sleep(0.5)


def told(page: Page, event: str, of: str, enough: int = 1) -> list[dict[str, Any]]:
    """The events of the search's run about one thing, a kind of trial if it is one."""
    of = f"nasflow.trial.{STUDY}.{page.trials[of]}" if of in page.trials else of
    run = {"id": [f"prefect.flow-run.{page.run['id']}"]}
    return events(page.server, event, enough, resource={"id_prefix": [of]}, related=run)


def test_runs_have_readable_names_and_tags(page):
    search, round = {f"study:{STUDY}", "strategy:grid"}, {f"study:{STUDY}", "strategy:grid", "round:0"}
    assert {tag for tag in page.run["tags"] if not tag.startswith(STUDY_TAG)} == search
    assert len(page.run["tags"]) == 3
    assert page.round["name"] == f"{STUDY}: round 0"
    assert set(page.round["tags"]) == round
    flaky, bad = page.trials["flaky"], page.trials["raise"]
    assert set(page.tasks) == {
        "submit trials of round 0",
        "batch trials of round 0",
        "train batch 0 of round 0: trials 0-2",
        f"train trial {flaky} of round 0 alone",
        f"train trial {bad} of round 0 alone",
        "persist metrics of round 0",
    }
    assert all(set(run["tags"]) == round for run in page.tasks.values())


def test_retries_are_retries_with_the_trials_error_in_a_line(page):
    headline = "ValueError: this candidate raises"
    flaky = page.tasks[f"train trial {page.trials['flaky']} of round 0 alone"]
    assert (flaky["run_count"], flaky["state_type"]) == (2, "COMPLETED")
    assert flaky["state"]["message"] == f"trial {page.trials['flaky']}: trained; retry 1 of 4 after: {headline}"
    with urllib.request.urlopen(f"{page.server.url}/task_run_states/?task_run_id={flaky['id']}", timeout=30) as answer:
        states = json.load(answer)
    again = f"retry 1 of 4 after: {headline}"
    assert [state["message"] for state in states if state["name"] == "AwaitingRetry"] == [again]
    assert again in [state["message"] for state in states if state["name"] == "Retrying"]
    bad = page.tasks[f"train trial {page.trials['raise']} of round 0 alone"]
    assert (bad["run_count"], bad["state_type"]) == (2, "FAILED")
    assert bad["state"]["message"] == "ValueError: this candidate always raises"
    batch = page.tasks["train batch 0 of round 0: trials 0-2"]["state"]
    assert batch["message"].startswith("1 of 3 trials trained; not trained: ")
    assert f"trial {page.trials['flaky']} ({headline})" in batch["message"]


def test_the_log_of_a_failed_task_run_has_the_whole_error(page):
    run = page.tasks[f"train trial {page.trials['raise']} of round 0 alone"]
    lines = page.server.post("/logs/filter", {"logs": {"task_run_id": {"any_": [run["id"]]}}})
    errors = [line["message"] for line in lines if line["message"].startswith("ValueError: this candidate")]
    assert len(errors) == 2, "of both tries"
    assert all("spaces.py" in error for error in errors), "where it was raised"


def test_the_searchs_page_has_its_artifacts_once(page):
    found = page.server.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [page.run["id"]]}}})
    by_key = {artifact["key"]: artifact for artifact in found}
    assert Counter(artifact["key"] for artifact in found) == Counter(by_key.keys())
    assert {key: artifact["type"] for key, artifact in by_key.items()} == {
        f"{STUDY}-leaderboard": "table",
        f"{STUDY}-curves": "markdown",
        f"{STUDY}-pareto": "markdown",
        f"{STUDY}-summary": "markdown",
        f"{STUDY}-links": "markdown",
    }
    assert len(json.loads(by_key[f"{STUDY}-leaderboard"]["data"])) == 2
    assert "data:image/svg+xml;base64," in by_key[f"{STUDY}-pareto"]["data"]
    folder = page.searches.folder / "nasflow-runs" / STUDY
    assert f"`{folder}`" in by_key[f"{STUDY}-links"]["data"]
    assert str(folder / "trials") in by_key[f"{STUDY}-links"]["data"]


def test_the_rounds_page_has_its_summary_its_merging_and_its_bars(page):
    found = page.server.post("/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [page.round["id"]]}}})
    counts = Counter(artifact["key"] for artifact in found)
    flaky, bad = (f"{STUDY}-round-0-trial-{page.trials[kind]}" for kind in ("flaky", "raise"))
    whole = {f"{STUDY}-round-0": 1, f"{STUDY}-round-0-merging": 1, f"{STUDY}-round-0-batch-0": 1}
    assert {key: count for key, count in counts.items() if key not in (flaky, bad)} == whole
    assert counts[flaky] <= 2 and counts[bad] <= 2, "a try that fails at once has none"
    bars = [artifact for artifact in found if artifact["type"] == "progress"]
    assert {float(bar["data"]) for bar in bars} == {100.0}


def test_a_running_batchs_bar_moves(page):
    assert any(0 < percent < 100 for percent in page.seen), page.seen


@pytest.mark.parametrize(("run", "flow"), [("run", "nas-search"), ("round", "nas-sampling-round")])
def test_each_run_has_its_heartbeats(page, run, flow):
    """By which the automation of `nasflow setup` notices that it is dead; the engine's would cost it half a second."""
    of = {"id": [f"prefect.flow-run.{getattr(page, run)['id']}"]}
    heartbeat = events(page.server, "prefect.flow-run.heartbeat", 1, resource=of)[0]
    roles = {related["prefect.resource.role"]: related for related in heartbeat["related"]}
    assert roles["flow"]["prefect.resource.name"] == flow


def test_events_tell_each_trials_way(page):
    ok = Counter(event["event"] for event in told(page, "nasflow.trial.", "ok", 7))
    assert ok["nasflow.trial.submitted"] == ok["nasflow.trial.final"] == 1
    assert ok["nasflow.trial.epoch"] == 4, "a small search is told whole"
    flaky = [event["event"] for event in told(page, "nasflow.trial.", "flaky", 6)]
    assert flaky.count("nasflow.trial.final") == 1 and "nasflow.trial.failed" not in flaky
    bad = told(page, "nasflow.trial.failed", "raise")
    assert [event["payload"]["error"] for event in bad] == ["ValueError: this candidate always raises"]
    best = told(page, "nasflow.trial.best", f"nasflow.trial.{STUDY}.")
    assert best[0]["payload"]["trial"] == page.trials["ok"], "the first that was scored is the best until then"


def test_an_event_says_what_it_is_about(page):
    (final,) = told(page, "nasflow.trial.final", "ok")
    (trial,) = [trial for trial in page.searches.json("show", STUDY)["trials"] if trial["number"] == page.trials["ok"]]
    assert final["resource"]["prefect.resource.name"] == f"trial {page.trials['ok']} of {STUDY}"
    assert final["payload"] == {
        "study": STUDY,
        "round": 0,
        "trial": page.trials["ok"],
        "epoch": 4,
        "status": "trained",
        "replayed_from": None,
        "metrics": trial["metrics"],
        "architecture": {"kind": "ok", "width": 8},
    }
    related = [(resource["prefect.resource.role"], resource["prefect.resource.id"]) for resource in final["related"]]
    assert related == [
        ("flow-run", f"prefect.flow-run.{page.run['id']}"),
        ("study", f"nasflow.study.{STUDY}"),
        ("flow", f"prefect.flow.{page.run['flow_id']}"),
    ]
    epochs = told(page, "nasflow.trial.epoch", "ok", 4)
    assert [event["payload"]["epoch"] for event in epochs] == [1, 2, 3, 4]
    assert "val_loss" in epochs[0]["payload"]["metrics"]


def test_a_round_says_whether_it_brought_something(page):
    (ended,) = told(page, "nasflow.round.ended", f"nasflow.round.{STUDY}.")
    assert ended["resource"]["nasflow.rounds-without-gain"] == "0"
    assert ended["payload"] == {
        "study": STUDY, "round": 0, "trials": 3, "scored": 2, "failed": 1, "improved": True, "rounds_without_gain": 0,
    }  # fmt: skip


def test_a_second_run_of_the_study_repeats_no_event(page):
    second = page.server.newest_run("nas-search", STUDY)
    assert second["id"] != page.run["id"]
    of_second = {"id": [f"prefect.flow-run.{second['id']}"]}
    ended = events(page.server, "prefect.flow-run.Completed", 1, resource=of_second)
    assert ended, "what came before it is persisted, too"
    assert events(page.server, "nasflow.", 0, related=of_second) == []
