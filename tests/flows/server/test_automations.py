"""The automations of the docs, created as they say, act on a real search: a new best is told, a vain search paused."""

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import yaml

from nasflow.flows.server.automations import best_notification, no_gain_pause
from tests.flows.forked_commands import ForkedProgram, run_forked
from tests.flows.searches import PrefectServer, Searches

DOCS = (Path(__file__).parents[3] / "docs" / "prefect-ui.md").read_text()
SHOWN: list[dict[str, Any]] = yaml.safe_load(re.findall(r"```yaml\n(.*?)```", DOCS, flags=re.DOTALL)[0])["automations"]
MAKE_BLOCK = """
import sys
from prefect.blocks.notifications import CustomWebhookNotificationBlock

mail = {"subject": "{{subject}}", "body": "{{body}}"}
print(CustomWebhookNotificationBlock(name="inbox", url=sys.argv[1], json_data=mail).save("inbox", overwrite=True))
"""
STUDY = "vain"
# Its trials get ever larger, so the first is the best by this objective.
SEARCH: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": list(range(8, 24, 2)), "delay": 0.02}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 1},
    "strategy": {"kind": "grid"},
    "objectives": [{"metric": "parameters", "direction": "minimize"}],
    "budget": {"rounds": 8, "trials_per_round": 1},
    "training_service": {"kind": "local", "slots": 1},
}


class Inbox(BaseHTTPRequestHandler):
    """Keeps what a webhook posts."""

    received: list[dict[str, Any]]

    def do_POST(self) -> None:
        self.received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def inbox() -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """The URL of a webhook, and what came to it."""
    handler = type("OneInbox", (Inbox,), {"received": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", handler.received
    server.shutdown()
    thread.join()
    server.server_close()


def prefect(server: PrefectServer, *arguments: object) -> None:
    """Run Prefect's command line."""
    run_forked(["prefect", *arguments], Path.cwd(), server.env, timeout=240).check_returncode()


@pytest.fixture
def automated(tmp_path: Path, prefect_server: PrefectServer, inbox) -> Iterator[list[dict[str, Any]]]:
    """What was notified by the docs' automations, which are gone afterwards: the server is other tests', too."""
    url, received = inbox
    made = run_forked(["python", "-c", MAKE_BLOCK, url], tmp_path, prefect_server.env, timeout=240)
    assert made.returncode == 0, made.stderr
    block = made.stdout.split()[-1]
    file = tmp_path / "automations.yaml"
    file.write_text(yaml.safe_dump({"automations": SHOWN}).replace(str(UUID(int=0)), block))
    prefect(prefect_server, "automation", "create", "--from-file", file)
    names = {shown["name"] for shown in SHOWN}
    created = [found for found in prefect_server.post("/automations/filter", {}) if found["name"] in names]
    assert {found["name"] for found in created} == names
    yield received
    for automation in created:
        prefect_server.call("DELETE", f"/automations/{automation['id']}")


def test_the_docs_show_what_setup_makes():
    from prefect.events.schemas.automations import AutomationCore

    best, pause = (AutomationCore.model_validate(shown) for shown in SHOWN)
    assert best.model_dump(mode="json") == best_notification(UUID(int=0)).model_dump(mode="json")
    assert pause.model_dump(mode="json") == no_gain_pause(3).model_dump(mode="json")


@pytest.mark.long
def test_a_new_best_is_told_and_a_search_without_gain_is_paused(searches: Searches, automated):
    searches.write(STUDY, **SEARCH)
    with searches.start("run", f"{STUDY}.yaml") as process:
        try:
            paused = wait_for_state(searches.server, process, "PAUSED")
            assert paused["state"]["message"] == "3 consecutive rounds without a new best"
            assert process.poll() is None, "it waits"
            ended = [r["number"] for r in searches.json("show", STUDY)["rounds"] if r["state"] != "running"]
            assert set(ended) >= {0, 1, 2, 3}
            resume = f"/flow_runs/{paused['id']}/resume"
            assert searches.server.post(resume, {})["status"] == "ACCEPT"
            output, _ = process.communicate(timeout=240)
            assert process.returncode == 0, output
        finally:
            process.kill()
    assert [record["state"] for record in searches.json("show", STUDY)["rounds"]] == ["completed"] * 8
    (told,) = [mail for mail in automated if mail["subject"].startswith(f"{STUDY}: ")]  # of the first trial alone
    parameters = searches.json("leaderboard", STUDY)[0]["parameters"]
    assert told["subject"] == f"{STUDY}: parameters {float(parameters)}"
    assert told["body"].startswith("Trial 0 of round 0 is the best so far.")
    assert "width" in told["body"]


def wait_for_state(server: PrefectServer, process: ForkedProgram, type: str) -> dict[str, Any]:
    """The search's flow run, once it is in a state of this type."""
    deadline = time.monotonic() + 240
    while process.poll() is None and time.monotonic() < deadline:
        runs = server.post("/flow_runs/filter", {"flow_runs": {"name": {"any_": [STUDY]}}})
        if runs and runs[0]["state_type"] == type:
            run: dict[str, Any] = runs[0]
            return run
        time.sleep(0.2)
    raise AssertionError(f"never {type}: {process.communicate(timeout=5)[0] if process.poll() is not None else runs}")
