"""A search that a flow of the user's own calls, which is suspended and resumed in Prefect's UI."""

from pathlib import Path
from typing import Any

import pytest

from tests.flows.forked_commands import ForkedProgram, start_forked
from tests.flows.recovery.test_kill import processes
from tests.flows.searches import HERE, ONE_TRIAL, Searches
from tests.flows.session.test_control import paused, set_state, state_of, wait_until

PIPELINE = """
import sys
from uuid import UUID
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.engine import handle_engine_signals
from prefect.flow_engine import run_flow
from nasflow.config.search import SearchConfig
from nasflow.flows import search

@flow(name="pipeline")
def pipeline(config: SearchConfig):
    search(config)

with handle_engine_signals(UUID(sys.argv[1])):
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(UUID(sys.argv[1]))
    run_flow(pipeline, flow_run=run)
"""


def config(folder: Path) -> dict[str, Any]:
    """A search that trains once the file `open` is there."""
    return {
        **ONE_TRIAL,
        "name": "search",
        "space": {"target": "watched_spaces.py:gated", "params": {"gate": str(folder / "open")}},
        "training_service": {"kind": "local", "slots": 1},
        "store": f"sqlite:///{folder}/nasflow.db",
        "work_dir": str(folder / "nasflow-runs"),
        "base_dir": str(HERE),
    }


def start(searches: Searches, run: dict[str, Any], program: str = PIPELINE) -> ForkedProgram:
    """Start the run of the pipeline as a worker does."""
    set_state(searches.server, run, {"type": "PENDING"})
    return start_forked(["python", "-c", program, run["id"]], searches.folder, searches.server.env)


def test_a_search_leaves_the_machine_with_a_suspended_pipeline_and_goes_on_with_it(searches: Searches) -> None:
    post, folder = searches.server.post, searches.folder
    flow = post("/flows/", {"name": "pipeline"})["id"]
    made = post("/deployments/", {"name": folder.name, "flow_id": flow})["id"]
    run = post(f"/deployments/{made}/create_flow_run", {"parameters": {"config": config(folder)}})
    try:
        with start(searches, run) as program:
            wait_until(lambda: any(event["kind"] == "started" for event in searches.events("search")), "no job", 120)
            set_state(searches.server, run, paused(600, suspended=True), force=True)  # as both UIs do
            try:
                wait_until(lambda: program.poll() is not None, "it trains on")
            finally:
                program.kill()
        assert not processes(searches) and "Traceback" not in program.said()
    finally:
        (folder / "open").touch()
    assert state_of(searches.server, run)["name"] == "Suspended"
    post(f"/flow_runs/{run['id']}/resume", {})
    with start(searches, run) as program:
        pass
    assert state_of(searches.server, run)["type"] == "COMPLETED", program.said()
    assert [trial["status"] for trial in searches.json("show", "search")["trials"]] == ["trained"]


@pytest.mark.long
def test_a_deployed_search_that_a_pipeline_began_is_suspended_by_itself(searches: Searches) -> None:
    post, folder = searches.server.post, searches.folder
    flow = post("/flows/", {"name": "nas-search"})["id"]
    made = post("/deployments/", {"name": folder.name, "flow_id": flow})["id"]
    caller = post("/flow_runs/", {"flow_id": post("/flows/", {"name": "pipeline"})["id"], "state": {"type": "RUNNING"}})
    task = {"flow_run_id": caller["id"], "task_key": "search", "dynamic_key": "0"}
    begun = {"parent_task_run_id": post("/task_runs/", task)["id"], "parameters": {"config": config(folder)}}
    run = post(f"/deployments/{made}/create_flow_run", begun)  # as `run_deployment` in a flow
    try:
        with start(searches, run, PIPELINE.replace("run_flow(pipeline,", "run_flow(search,")) as program:
            wait_until(lambda: any(event["kind"] == "started" for event in searches.events("search")), "no job", 120)
            set_state(searches.server, run, paused(600, suspended=True), force=True)
            try:
                wait_until(lambda: program.poll() is not None, "it trains on")
            finally:
                program.kill()
    finally:
        (folder / "open").touch()
    said = [line["message"] for line in post("/logs/filter", {"logs": {"flow_run_id": {"any_": [run["id"]]}}})]
    assert "study 'search' is suspended: its jobs and this process end; Resume continues from there" in said
    state = state_of(searches.server, run)
    assert (state["name"], state["state_details"]["pause_timeout"]) == ("Suspended", None)
