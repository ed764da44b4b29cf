"""Cancel, pause, suspend and resume, as Prefect's UI asks for them, of searches with and without a worker."""

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from nasflow.flows.session.control import _leave
from tests.flows.forked_commands import ForkedProgram, start_forked
from tests.flows.recovery.test_kill import CONFIG, assert_nothing_lost_or_repeated, processes, wait_for_epochs
from tests.flows.searches import PrefectServer, Searches

__all__ = ["CONFIG"]  # the fixture `undisturbed` runs it

CANCELLING = {"type": "CANCELLING", "name": "Cancelling"}
FINAL = {"COMPLETED", "CANCELLED", "FAILED", "CRASHED"}


def wait_until(true: Callable[[], bool], what: str, seconds: float = 60) -> float:
    """The seconds until something is true."""
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, what
        time.sleep(0.05)
    return time.monotonic() - began


def state_of(server: PrefectServer, run: dict[str, Any]) -> dict[str, Any]:
    (now,) = server.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [run["id"]]}}})
    return dict(now["state"])


def rounds_of(server: PrefectServer, run: dict[str, Any]) -> list[str]:
    """The states of its rounds."""
    return [child["state_type"] for child in server.rounds_of(run)]


def set_state(server: PrefectServer, run: dict[str, Any], state: dict[str, Any], force: bool = False) -> None:
    answer = server.post(f"/flow_runs/{run['id']}/set_state", {"state": state, "force": force})
    assert answer["status"] == "ACCEPT", answer


def paused(seconds: float, suspended: bool) -> dict[str, Any]:
    """The state that is set by the button of Prefect's UI if `suspended`, and by no button else."""
    details = {
        "pause_timeout": (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat(),
        "pause_reschedule": suspended,
    }
    return {"type": "PAUSED", "name": "Suspended" if suspended else "Paused", "state_details": details}


def trained_seconds(searches: Searches) -> float:
    return float(sum(record["seconds"] for record in searches.json("show", "search")["rounds"]))


CANCELLED_EARLY = """
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.states import Cancelling

from nasflow.flows import {module}
from nasflow.flows.cli import main


def cancel() -> str:
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(flow_run.id, Cancelling(), force=True)
    return "cancelled early"


{module}.{flow} = {module}.{flow}.with_options(flow_run_name=cancel)
main()
"""


# --- a search in a process that no runner started -----------------------------------------------------------------


def cancelled_early(searches: Searches, flow: str, *command: str) -> None:
    """A command whose flow run, or its first round's, is cancelled just before it is set to RUNNING."""
    module, _, name = flow.partition(".")
    program = [sys.executable, "-c", CANCELLED_EARLY.format(module=module, flow=name), *command]
    ended = subprocess.run(
        program, cwd=searches.folder, env=searches.server.env, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 130, ended.stdout + ended.stderr
    assert "the same command continues from here" in ended.stdout
    assert "Traceback" not in ended.stderr


def test_a_run_that_is_cancelled_before_it_begins_is_an_interruption(searches):
    searches.write("search", **CONFIG)
    for flow, name, command in (
        ("search_flow.search", "nas-search", ["run", "search.yaml"]),
        ("retry_flow.retry_failed", "nas-retry", ["retry", "search"]),
    ):
        cancelled_early(searches, flow, *command)
        runs = searches.server.post("/flow_runs/filter", {"flows": {"name": {"any_": [name]}}, "sort": "ID_DESC"})
        early = [run for run in runs if run["name"] == "cancelled early"]
        assert [run["state_type"] for run in early] == ["CANCELLED"]


@pytest.mark.long
def test_a_round_that_is_cancelled_before_it_begins_cancels_the_search(searches):
    searches.write("search", **CONFIG)
    cancelled_early(searches, "search_flow.sampling_round", "run", "search.yaml")
    run = searches.server.newest_run("nas-search")
    assert state_of(searches.server, run)["type"] == "CANCELLED"
    assert rounds_of(searches.server, run) == ["CANCELLED"]


@pytest.mark.long
@pytest.mark.parametrize("by_round", [False, True])
def test_a_cancelled_search_ends_its_processes_and_can_be_resumed(searches, undisturbed, by_round):
    searches.write("search", **CONFIG)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 6)
    run = cancelled = searches.server.newest_run("nas-search")
    if by_round:
        (cancelled,) = [each for each in searches.server.rounds_of(run) if each["state_type"] == "RUNNING"]
    set_state(searches.server, cancelled, CANCELLING)
    waited = wait_until(lambda: not processes(searches), "the jobs go on")
    assert waited < 5
    output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 130, output
    assert state_of(searches.server, run)["type"] == "CANCELLED"
    assert rounds_of(searches.server, run) == ["CANCELLED"]
    searches.run("run", "search.yaml")
    assert_nothing_lost_or_repeated(searches, undisturbed)


@pytest.mark.long
def test_a_search_that_prefect_takes_for_dead_can_be_cancelled_still(searches):
    searches.write("search", **CONFIG | {"evaluator": {**CONFIG["evaluator"], "epochs": 10_000}})
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 1)
    run = searches.server.newest_run("nas-search")
    (round,) = searches.server.rounds_of(run)
    crashed = {"type": "CRASHED", "message": "no heartbeat for 540 s: its process was killed or hangs"}
    for dead in (round, run):  # as our automation after an outage
        set_state(searches.server, dead, crashed, force=True)
    wait_until(lambda: state_of(searches.server, run)["type"] == "RUNNING", "it stays Crashed")
    wait_until(lambda: rounds_of(searches.server, run) == ["RUNNING"], "its round stays Crashed")
    set_state(searches.server, run, CANCELLING)
    output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 130, output
    assert state_of(searches.server, run)["type"] == "CANCELLED"


@pytest.mark.long
def test_a_paused_search_leaves_the_machine_and_goes_on_when_it_is_resumed(searches, undisturbed):
    searches.write("search", **CONFIG)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 6)
    run = searches.server.newest_run("nas-search")
    began = time.monotonic()
    set_state(searches.server, run, paused(600, suspended=False))
    wait_until(lambda: not processes(searches), "the jobs go on", 5)
    wait_until(lambda: rounds_of(searches.server, run) == ["CANCELLED"], "its round goes on")
    before = trained_seconds(searches)
    time.sleep(3)
    assert trained_seconds(searches) == before, "the pause is taken for training"
    assert controller.poll() is None and not processes(searches)
    assert state_of(searches.server, run)["name"] == "Paused"
    idle = time.monotonic() - began
    searches.server.post(f"/flow_runs/{run['id']}/resume", {})
    resumed = time.monotonic()
    output, _ = controller.communicate(timeout=240)
    assert controller.returncode == 0, output
    assert trained_seconds(searches) < before + time.monotonic() - resumed, idle
    assert state_of(searches.server, run)["type"] == "COMPLETED"
    assert rounds_of(searches.server, run) == ["CANCELLED", "COMPLETED", "COMPLETED"]
    assert_nothing_lost_or_repeated(searches, undisturbed)


@pytest.mark.long
def test_a_paused_search_can_be_cancelled_by_ctrl_c_and_has_a_time_limit(searches):
    endless = CONFIG | {"evaluator": {**CONFIG["evaluator"], "epochs": 10_000}}
    searches.write("search", **endless)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 1)
    run = searches.server.newest_run("nas-search")
    set_state(searches.server, run, paused(600, suspended=False))
    wait_until(lambda: rounds_of(searches.server, run) == ["CANCELLED"], "its round goes on")
    controller.send_signal(signal.SIGINT)
    output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 130, output
    assert state_of(searches.server, run)["type"] == "CANCELLED"

    controller = searches.start("run", "search.yaml")
    wait_until(lambda: searches.server.newest_run("nas-search")["id"] != run["id"], "no second run")
    run = searches.server.newest_run("nas-search")
    wait_until(lambda: rounds_of(searches.server, run) == ["RUNNING"], "its round does not begin")
    set_state(searches.server, run, paused(1, suspended=False))
    output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 1, output
    assert "study 'search' was paused and not resumed in time; run it again to go on" in output
    assert state_of(searches.server, run)["type"] == "FAILED"
    assert not processes(searches)


@pytest.mark.long
def test_sigterm_leaves_a_resumable_study(searches, undisturbed):
    searches.write("search", **CONFIG)
    controller = searches.start("run", "search.yaml")
    wait_for_epochs(searches, 6)
    run = searches.server.newest_run("nas-search")
    controller.send_signal(signal.SIGTERM)
    output, _ = controller.communicate(timeout=60)
    assert controller.returncode == 128 + signal.SIGTERM, output
    assert not processes(searches)
    assert state_of(searches.server, run)["type"] == "CRASHED", "so `nasflow recover` takes it up"
    assert rounds_of(searches.server, run) == ["CRASHED"]
    searches.run("run", "search.yaml")
    assert_nothing_lost_or_repeated(searches, undisturbed)


# --- a run of a deployment ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer) -> Iterator[ForkedProgram]:
    """A worker of the pool 'control'."""
    prefect_server.post("/work_pools/", {"name": "control", "type": "process"})
    variables = prefect_server.env | {"PREFECT_WORKER_QUERY_SECONDS": "1"}
    command = ["prefect", "worker", "start", "--pool", "control", "--type", "process"]
    process = start_forked(command, tmp_path_factory.mktemp("worker"), variables)
    yield process
    process.send_signal(signal.SIGTERM)
    process.wait(30)


def start_run(searches: Searches, **config: Any) -> dict[str, Any]:
    """A run of a deployment of the search, which has trained some epochs."""
    searches.write("search", **CONFIG | config)
    searches.run("deploy", "search.yaml", "--work-pool", "control", "--name", searches.folder.name)
    (deployment,) = searches.server.post(
        "/deployments/filter", {"deployments": {"name": {"any_": [searches.folder.name]}}}
    )
    run = searches.server.post(f"/deployments/{deployment['id']}/create_flow_run", {})
    wait_for_epochs(searches, 6)
    return dict(run)


@pytest.mark.parametrize(("deployed", "left"), [(True, "SCHEDULED"), (False, "RUNNING")])
def test_only_a_run_that_a_worker_can_start_is_scheduled_again(searches, deployed, left):
    """Not one in a flow that is suspended itself, which would be shown as late."""
    post = searches.server.post
    flow = post("/flows/", {"name": "nas-search"})["id"]
    deployment = post("/deployments/", {"name": searches.folder.name, "flow_id": flow})["id"] if deployed else None
    running = {"type": "RUNNING", "name": "Running"}
    made = post("/flow_runs/", {"flow_id": flow, "deployment_id": deployment, "state": running})
    with temporary_settings({PREFECT_API_URL: searches.server.url}), get_client(sync_client=True) as client:
        _leave(client, client.read_flow_run(UUID(made["id"])))
    assert state_of(searches.server, made)["type"] == left


@pytest.mark.long
def test_a_suspended_run_is_resumed_by_its_worker(searches, undisturbed, worker):
    run = start_run(searches)
    set_state(searches.server, run, paused(4, suspended=True), force=True)  # as both UIs do
    waited = wait_until(lambda: not processes(searches), "the jobs go on")
    assert waited < 5
    wait_until(lambda: state_of(searches.server, run)["message"] is not None, "the time limit stays")
    time.sleep(10)  # Prefect looks every 5 s for pauses whose time limit has passed
    state = state_of(searches.server, run)
    assert (state["name"], state["state_details"]["pause_timeout"]) == ("Suspended", None)
    assert rounds_of(searches.server, run) == ["CANCELLED"]
    searches.server.post(f"/flow_runs/{run['id']}/resume", {})
    wait_until(lambda: state_of(searches.server, run)["type"] in FINAL, worker.said(), 120)
    assert state_of(searches.server, run)["type"] == "COMPLETED", worker.said()
    assert {"COMPLETED"} <= set(rounds_of(searches.server, run)) <= {"COMPLETED", "CANCELLED"}
    assert_nothing_lost_or_repeated(searches, undisturbed)


@pytest.mark.long
def test_a_run_cancelled_by_its_worker_can_be_resumed(searches, undisturbed, worker):
    run = start_run(searches)
    set_state(searches.server, run, CANCELLING)
    waited = wait_until(lambda: not processes(searches), "the jobs go on")
    assert waited < 5
    wait_until(lambda: state_of(searches.server, run)["type"] in FINAL, worker.said())
    assert state_of(searches.server, run)["type"] == "CANCELLED", worker.said()
    assert rounds_of(searches.server, run) == ["CANCELLED"]
    searches.run("run", "search.yaml")
    assert_nothing_lost_or_repeated(searches, undisturbed)
