"""A run of a deployment goes on if the server has lost its place among the deployment's runs."""

import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.flows.forked_commands import run_forked, start_forked
from tests.flows.forks import ForkedProgram
from tests.flows.searches import HERE, PrefectProcess, PrefectServer

RUN = """
import sys
from uuid import UUID
from prefect.client.orchestration import get_client
from prefect.concurrency import _leases
from prefect.flow_engine import run_flow
from nasflow.flows import search



def renew(lease, *arguments):
    if float(sys.argv[2]) == 0.75:  # as if the server had been started again
        with get_client(sync_client=True) as client:
            client.release_concurrency_slots_with_lease(lease)
    renew_always(lease, *arguments)


def failed(*arguments):
    print("its place is lost", flush=True)
    handle_failure(*arguments)


handle_failure, _leases._handle_lease_renewal_failure = _leases._handle_lease_renewal_failure, failed
renew_always, _leases._lease_renewal_loop = _leases._lease_renewal_loop, renew
_leases._RENEWAL_RETRY_BASE_DELAY = 0.01
_leases._RENEWAL_FRACTION = float(sys.argv[2])
with get_client(sync_client=True) as client:
    run = client.read_flow_run(UUID(sys.argv[1]))
state = run_flow(search, flow_run=run, return_type="state")
print(state.type.value, state.message)
"""


def config(folder: Path) -> dict[str, Any]:
    """A search that trains once the file `open` is there."""
    return {
        "name": folder.name,
        "space": {"target": "watched_spaces.py:gated", "params": {"gate": str(folder / "open")}},
        "evaluator": {
            "kind": "classification",
            "data": {"target": "nasflow.evaluator.data:DigitsRows"},
            "epochs": 1,
        },
        "budget": {"rounds": 1, "trials_per_round": 1},
        "training_service": {"kind": "debug"},
        "store": f"sqlite:///{folder}/nasflow.db",
        "work_dir": str(folder / "nasflow-runs"),
        "base_dir": str(HERE),
    }


def begun(server: PrefectServer, folder: Path) -> str:
    """The id of a run of a deployment with one place, which it has."""
    limit = {"concurrency_limit": 1, "concurrency_options": {"collision_strategy": "ENQUEUE"}}
    flow = server.post("/flows/", {"name": "nas-search"})["id"]
    deployment = server.post("/deployments/", {"name": folder.name, "flow_id": flow, **limit})["id"]
    parameters = {"config": config(folder)}
    run = server.post(f"/deployments/{deployment}/create_flow_run", {"parameters": parameters})["id"]
    server.post(f"/flow_runs/{run}/set_state", {"state": {"type": "PENDING"}})
    return str(run)


def wait_for(happened: Callable[[], bool], program: ForkedProgram) -> None:
    deadline = time.monotonic() + 300
    while not happened():
        assert program.poll() is None and time.monotonic() < deadline, program.said()
        time.sleep(0.1)


def test_a_search_whose_place_is_lost_trains_to_its_end(tmp_path: Path, prefect_server: PrefectServer) -> None:
    (tmp_path / "open").touch()
    run = begun(prefect_server, tmp_path)
    done = run_forked(["python", "-c", RUN, run, "0.75"], tmp_path, prefect_server.env)
    assert done.stdout.splitlines() == ["its place is lost", "COMPLETED best is trial 0"], done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_search_outlives_a_restart_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "prefect").mkdir()
    process = PrefectProcess(tmp_path / "prefect")
    process.start()
    try:
        folder = tmp_path / "restarted"
        folder.mkdir()
        run = begun(process.server, folder)
        program = start_forked(["python", "-c", RUN, run, "0.005"], folder, process.server.env, errors=False)
        wait_for(lambda: any((folder / "nasflow-runs").rglob("events.jsonl")), program)
        process.end(signal.SIGKILL)
        process.start()
        wait_for(lambda: "its place is lost" in program.said(), program)  # Prefect tries for up to a minute
        (folder / "open").touch()
        said, _ = program.communicate(timeout=300)
        assert said.splitlines() == ["its place is lost", "COMPLETED best is trial 0"], said
        (now,) = process.server.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [run]}}})
        assert now["state_type"] == "COMPLETED"
    finally:
        process.end()
