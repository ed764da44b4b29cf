"""Flows that a script calls where no server is named: nasflow starts one for them, as its commands do."""

import os
import signal
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect import Flow
from prefect.flows import load_flow_arguments_from_entrypoint, load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL, temporary_settings

from nasflow.flows import recover, retention, retry_failed, sampling_round, search
from nasflow.flows.server import flow_calls
from nasflow.flows.server.errors import PrefectApiError
from nasflow.flows.server.own_server import ensure_server
from tests.flows.forked_commands import run_forked
from tests.flows.searches import ONE_TRIAL, PrefectServer, Searches

SCRIPT = """
import os, signal, threading, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from prefect.exceptions import CancelledRun

from nasflow.config import load_config
from nasflow.flows import search

os.setpgrp()  # as a shell starts a program
configs = {path.stem: load_config(path) for path in Path().glob("*.yaml")}


def interrupt_once_it_trains():
    while not any('"epoch"' in file.read_text() for file in Path().glob("nasflow-runs/slow/jobs/*/events.jsonl")):
        time.sleep(0.05)
    os.killpg(0, signal.SIGINT)


with ThreadPoolExecutor(2) as pool:
    results = pool.map(search, [configs["first"], configs["second"]])
    print("at once:", *(metric for result in results for metric in sorted(result.best.metrics)))

threading.Thread(target=interrupt_once_it_trains).start()
try:
    search(configs["slow"])
except CancelledRun:
    print("interrupted")
print("again:", *sorted(search(configs["slow"]).best.metrics))

(server,) = (each for each in psutil.Process().children() if any("server" in part for part in each.cmdline()))
server.kill()
server.wait()
print("after a kill:", *sorted(search(configs["slow"]).best.metrics))
"""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_threads_share_a_server_that_ctrl_c_does_not_reach_and_that_is_replaced(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    searches = Searches(tmp_path, PrefectServer("", {**env, "PREFECT_HOME": str(tmp_path / "prefect")}))
    for name in ("first", "second"):
        searches.write(name, **ONE_TRIAL)
    space = {"target": "spaces.py:mixed", "params": {"delay": 0.01}}
    slow = {"evaluator": {**ONE_TRIAL["evaluator"], "epochs": 3}, "training_service": {"kind": "local", "slots": 1}}
    searches.write("slow", **{**ONE_TRIAL, **slow, "space": space})
    ended = run_forked(["python", "-c", SCRIPT], tmp_path, searches.server.env, timeout=500)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    metrics = "parameters train_loss val_accuracy val_loss"
    assert ended.stdout.splitlines() == [
        f"at once: {metrics} {metrics}",
        "interrupted",
        f"again: {metrics}",
        f"after a kill: {metrics}",
    ]


def test_a_server_that_did_not_start_is_started_again_by_the_next_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    (tmp_path / "prefect").write_text("a file")
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        for _ in range(2):
            with pytest.raises(PrefectApiError, match=r"did not start: .*mend this, or set PREFECT_HOME to"):
                ensure_server()


@pytest.mark.parametrize("flow", [recover, retention, retry_failed, sampling_round, search], ids=lambda flow: flow.name)
def test_a_flow_with_other_options_and_one_that_is_loaded_for_a_deployment_starts_a_server_too(
    monkeypatch: pytest.MonkeyPatch, flow: Flow[..., Any]
) -> None:
    entrypoint = f"{flow.fn.__module__}.{flow.fn.__name__}"
    loaded = load_flow_from_entrypoint(entrypoint)
    assert load_flow_arguments_from_entrypoint(entrypoint, {"name"}) == {"name": flow.name}
    assert (loaded.name, loaded.parameters) == (flow.name, flow.parameters)

    def ensure() -> None:
        raise PrefectApiError("called", "as expected")

    monkeypatch.setattr(flow_calls, "ensure_server", ensure)
    other = flow.with_options(name="other").with_options(retries=1)
    assert isinstance(other, Flow) and (other.name, other.retries) == ("other", 1)
    for each in (flow, loaded, other):
        with pytest.raises(PrefectApiError, match="called"):
            each()


KILLED = """
import os, signal, threading
from nasflow.flows.server import own_server

thread = threading.Thread(target=own_server.ensure_server)
thread.start()
thread.join()
print(own_server._started[-1].process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_a_server_that_a_thread_has_started_ends_with_the_process(tmp_path: Path) -> None:
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    ended = run_forked(["python", "-c", KILLED], tmp_path, {**env, "PREFECT_HOME": str(tmp_path / "prefect")})
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    if psutil.pid_exists(server := int(ended.stdout)):
        psutil.wait_procs([psutil.Process(server)], timeout=60)
    assert not psutil.pid_exists(server)
