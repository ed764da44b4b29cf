"""A search without a Prefect server: Prefect starts one for it, out of reach of Ctrl-C, which does not outlive it."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from tests.flows.searches import NASFLOW, PrefectServer, Searches

pytestmark = [pytest.mark.long, pytest.mark.timeout(600)]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_to_all_processes_of_the_terminal_ends_it_soon_and_it_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    home = {"PREFECT_HOME": str(tmp_path / "prefect"), "PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
    env = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"} | home
    searches = Searches(tmp_path, PrefectServer("", env))
    searches.write(
        "search",
        space={"target": "spaces.py:mixed", "params": {"delay": 0.01}},
        evaluator={"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 4},
        budget={"rounds": 1, "trials_per_round": 2},
        training_service={"kind": "local", "slots": 1},
    )
    process = subprocess.Popen(
        [*NASFLOW, "run", "search.yaml"],
        cwd=tmp_path,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),  # noqa: PLW1509 - no threads; in the background it is ignored
    )
    deadline = time.monotonic() + 300
    while not any(event["kind"] == "epoch" for event in searches.events("search")):
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    (server,) = (
        each
        for each in psutil.Process(process.pid).children()
        if "nasflow.flows.server.server_program" in each.cmdline()
    )
    os.killpg(process.pid, number)
    said = process.communicate(timeout=60)[0]
    assert process.returncode != 0
    assert "Traceback" not in said and "None" not in said, said
    if number is signal.SIGINT:
        assert process.returncode == 130 and "the same command continues from here" in " ".join(said.split())
    server.wait(30)
    assert "trained best model" in searches.run("run", "search.yaml")
