"""What a search leaves in Prefect: readable names, honest states, artifacts that are safe to show."""

import json
import logging
import math
import re
import threading
from dataclasses import replace
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace

import httpx
import numpy as np
import pytest
from prefect.settings import PREFECT_API_URL, temporary_settings

from nasflow.config.search import parse_config
from nasflow.flows.ui import artifacts
from nasflow.flows.ui.artifacts import Progress, artifact_key, plain, show_markdown
from nasflow.flows.ui.run_page import RunPage
from nasflow.job.events import DIFFERS
from tests.flows.forked_commands import run_forked
from tests.flows.searches import Searches

SEARCH = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": list(range(8, 24)), "delay": 0.03}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 2},
    "budget": {"rounds": 2, "trials_per_round": 4},
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory, prefect_server):
    """A search whose run in Prefect is looked at."""
    searches = Searches(tmp_path_factory.mktemp("shown"), prefect_server)
    searches.write("Shown_1", **SEARCH)
    searches.run("run", "Shown_1.yaml")
    return searches


def latest(searches: Searches, key: str) -> dict[str, object]:
    found = searches.server.post("/artifacts/latest/filter", {"artifacts": {"key": {"any_": [key]}}})
    assert len(found) == 1, key
    return found[0]


def test_rounds_are_subflows_of_the_search(shown):
    search = shown.server.newest_run("nas-search", "Shown_1")
    rounds = shown.server.rounds_of(search)
    assert [run["name"] for run in rounds] == ["Shown_1: round 0", "Shown_1: round 1"]
    assert {run["state_type"] for run in [search, *rounds]} == {"COMPLETED"}


def test_tasks_have_names_a_person_understands(shown):
    names = {run["name"] for run in shown.server.task_runs("nas-search", 10)}
    assert "submit trials of round 0" in names
    assert any(name.startswith("train batch 0 of round 0: trials ") for name in names)
    assert "persist metrics of round 1" in names


def test_leaderboard_is_a_table(shown):
    rows = json.loads(latest(shown, artifact_key("Shown_1", "leaderboard"))["data"])
    assert len(rows) == 8
    assert rows[0]["val_accuracy"] == shown.json("leaderboard", "Shown_1")[0]["val_accuracy"]


@pytest.mark.parametrize("key", ["round-0", "round-1", "summary", "curves"])
def test_summaries_and_curves_are_markdown(shown, key):
    artifact = latest(shown, artifact_key("Shown_1", key))
    assert artifact["type"] == "markdown"
    assert "val_accuracy" in artifact["data"]


@pytest.mark.parametrize("number", [0, 1])
def test_how_a_round_was_merged_is_markdown(shown, number):
    artifact = latest(shown, artifact_key("Shown_1", "round", number, "merging"))
    assert artifact["type"] == "markdown"
    attempts = [attempt for attempt in shown.json("show", "Shown_1")["attempts"] if attempt["round"] == number]
    assert artifact["data"].count("## ") == artifact["data"].count("## Batch ") == len(attempts)
    planned = [event for event in shown.events("Shown_1") if event["kind"] == "planned"]
    trials = [int(trial) for attempt in attempts for trial in attempt["members"]]
    told = [unit for event in planned for unit in event["units"] if unit["members"][0] in trials]
    assert all(f"{unit['fused']} of {unit['operations']}" in artifact["data"] for unit in told)
    together = sum(len(unit["members"]) for unit in told)
    assert f"{together} of {len(trials)} trials merged into {len(told)} units" in artifact["description"]
    assert together or "Not merged" in artifact["data"]


def test_trials_that_differ_are_told_to_be_reported(tmp_path, prefect_server):
    """A pass that gives members each other's outputs is found out: in the round's artifact, and in the log."""
    seen = {"SEEN_BY_A_PASS": str(tmp_path / "seen")}
    searches = Searches(tmp_path, replace(prefect_server, env=prefect_server.env | seen))
    space = {"target": "nasflow.space.ready:mlp", "params": {"in_features": 64, "classes": 10}}
    merge = {"fuse": "always", "passes": ["../../training/models/fused_passes.py:mixing_up"]}
    budget = {"rounds": 1, "trials_per_round": 3}
    searches.write("mixed-up", space=space, evaluator=SEARCH["evaluator"], budget=budget, merge=merge)
    searches.run("run", "mixed-up.yaml")
    planned = [event for event in searches.events("mixed-up") if event["kind"] == "planned"]
    reasons = {trial: why for event in planned for trial, why in event["alone"].items() if why.startswith(DIFFERS)}
    assert reasons
    section = latest(searches, "mixed-up-round-0-merging")["data"].partition("## Batch ")[0]
    assert "## Trials that would train differently when merged" in section
    assert "defect of nasflow" in section
    warned = prefect_server.post("/logs/filter", {"logs": {"level": {"ge_": logging.WARNING}}})
    lines = [line["message"] for line in warned]
    for trial, why in reasons.items():
        assert f"- trials {trial}: {why}" in section
        assert f"trial {trial} trains by itself: {why}" in lines
    assert {trial["status"] for trial in searches.json("show", "mixed-up")["trials"]} == {"trained"}


def test_each_batch_has_a_progress_bar_that_is_full_at_its_end(shown):
    for batch in range(len([a for a in shown.json("show", "Shown_1")["attempts"] if a["round"] == 0])):
        artifact = latest(shown, artifact_key("Shown_1", "round", 0, "batch", batch))
        assert artifact["type"] == "progress"
        assert float(artifact["data"]) == 100.0


def test_values_are_made_plain():
    assert plain(math.nan) is None and plain(-math.inf) is None
    assert plain(np.float32(0.5)) == 0.5 and plain(np.float32("inf")) is None
    assert plain(np.int64(3)) == 3 and plain([1]) == "[1]"


def test_no_two_studies_share_a_key():
    names = ["a.b", "a-b", "a_b", "A_b", "a-B", "a--b"]
    keys = {artifact_key(name, "round", 3) for name in names}
    assert len(keys) == len(names) and "a-b-round-3" in keys
    assert all(re.fullmatch(r"a-b-([0-9a-f]{8}-)?round-3", key) for key in keys)


def refused(status: int) -> httpx.HTTPStatusError:
    return httpx.HTTPStatusError(
        str(status), request=httpx.Request("PATCH", "http://x"), response=httpx.Response(status)
    )


@pytest.fixture
def warned(monkeypatch, caplog):
    """What is logged, as in a program that has not warned yet."""
    monkeypatch.setattr(artifacts, "_warned", threading.Event())
    with caplog.at_level(logging.WARNING, "nasflow.flows.ui"):
        yield caplog


def test_a_bar_that_the_server_refuses_ends_nothing_and_is_made_again(monkeypatch, warned):
    answers = [refused(500), "first", refused(504), None, refused(404), "second", None]
    asked = []

    def answer(what):
        asked.append(what)
        if isinstance(given := answers.pop(0), Exception):
            raise given
        return given

    monkeypatch.setattr(artifacts, "create_progress_artifact", lambda *_: answer("create"))
    monkeypatch.setattr(
        artifacts, "update_progress_artifact", lambda artifact_id, progress: answer((artifact_id, progress))
    )
    bar = Progress("key", "epochs", every=0.0)
    for share in range(1, 8):
        bar.update(share / 10)
    updates = [("first", 30.0), ("first", 40.0), ("first", 50.0)]
    assert asked == ["create", "create", *updates, "create", ("second", 70.0)]
    assert len(warned.records) == 1, "told once"


def test_a_page_goes_on_without_the_server_and_shows_anew_what_was_deleted(monkeypatch, warned):
    page = RunPage(parse_config({"name": "shown", **SEARCH}), datetime.now(UTC))
    made, updates = [], [None, refused(404), refused(500)]

    def create(artifact, _sync):
        if len(made) == 2:
            raise httpx.ConnectError("gone")
        made.append(artifact.key)
        return SimpleNamespace(id=len(made))

    def update(id, _):
        if (error := updates.pop(0)) is not None:
            raise error

    monkeypatch.setattr("prefect.artifacts.Artifact.create", create)
    client = SimpleNamespace(update_artifact=update)
    monkeypatch.setattr("prefect.client.orchestration.get_client", lambda sync_client: client)
    for _ in range(4):  # made, updated, made again, and refused
        page.show_markdown("text", "# Text", "A text")
    page.show_table("rows", [{"a": 1}], "A table")
    assert made == ["text", "text"] and not updates
    monkeypatch.setattr(artifacts, "create_markdown_artifact", create_refused)
    show_markdown("text", "# Text", "A text")
    assert len(warned.records) == 1, "told once"


WARNS = """
import logging, threading
from datetime import UTC, datetime
from pathlib import Path
from prefect import flow
from nasflow.config.search import load_config
from nasflow.flows.ui.run_page import RunPage

LOG = logging.getLogger("nasflow.flows.pool.service")
page = RunPage(load_config(Path("warned.yaml")), datetime.now(UTC))

@flow(name="outer")
def outer():
    with page.of_this_run():
        watching = threading.Thread(target=LOG.warning, args=("%s; jobs wait", "the pool is gone"))
        watching.start()
        watching.join()
        inner()
    LOG.warning("of no search any more")

@flow(name="inner")
def inner():
    with page.of_this_run():
        LOG.error("a job could not be ended")

outer()
"""


def test_warnings_of_any_thread_are_once_in_the_log_of_the_searchs_run(searches):
    searches.write("warned", **SEARCH)
    ended = run_forked(["python", "-c", WARNS], searches.folder, searches.server.env)
    assert ended.returncode == 0, ended.stderr
    run = searches.server.newest_run("outer")
    warned = searches.server.post(
        "/logs/filter", {"logs": {"level": {"ge_": logging.WARNING}}, "sort": "TIMESTAMP_ASC"}
    )
    lines = [(line["flow_run_id"], line["message"]) for line in warned if line["name"] == "nasflow.flows.pool.service"]
    assert lines == [(run["id"], "the pool is gone; jobs wait"), (run["id"], "a job could not be ended")]


class LoginPage(BaseHTTPRequestHandler):
    """Answers as a proxy whose login has ended."""

    def do_GET(self):
        page = b"<html>Log in</html>"
        self.send_response(200)
        self.send_header("Content-Length", str(len(page)))
        self.end_headers()
        self.wfile.write(page)

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(302)
        self.send_header("Location", "/login")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.mark.filterwarnings("ignore:Artifact creation outside:FutureWarning")
def test_a_proxys_page_in_answer_ends_nothing(warned):
    with ThreadingHTTPServer(("127.0.0.1", 0), LoginPage) as proxy:
        thread = threading.Thread(target=proxy.serve_forever, args=(0.01,))
        thread.start()
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{proxy.server_port}/api"}):
            Progress("key", "epochs", every=0.0).update(0.5)
            show_markdown("text", "# Text", "A text")
        proxy.shutdown()
        thread.join()
    assert len(warned.records) == 1, "told once"


def create_refused(**_: str) -> None:
    raise refused(504)
