"""A search killed with SIGKILL, which no one is left to tell of: `python -m tests.faults.zombie` (about 3 minutes).

With the automation of `nasflow setup` and the shortest heartbeats that Prefect allows (30 s), its flow runs have to be
CRASHED within 90 s of the last heartbeat, a second search that lives on untouched, and `nasflow recover` has to resume
the first.
"""

import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.flows.searches import HERE, PrefectProcess, Searches

HEARTBEAT = 30
WITHIN = 3 * HEARTBEAT
SLACK = 30  # seconds for the server, which looks for what is overdue every now and then
CONFIG: dict[str, Any] = {
    "base_dir": str(HERE),
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 12, 16, 24], "delay": 0.2}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 6},
    "strategy": {"kind": "grid"},
    "budget": {"rounds": 1, "trials_per_round": 4},
    "training_service": {"kind": "local", "slots": 1},
}


def states(searches: Searches, study: str) -> dict[str, str]:
    """The states of the flow runs of a study by name, the newest of each."""
    like = {"flow_runs": {"name": {"like_": study}}, "sort": "START_TIME_ASC"}
    return {run["name"]: run["state_type"] for run in searches.server.post("/flow_runs/filter", like)}


def wait_for_epoch(searches: Searches, study: str) -> None:
    """Until a study has trained something."""
    while not any(event["kind"] == "epoch" for event in searches.events(study)):
        time.sleep(0.2)


def run(folder: Path) -> None:
    """The scenario; an AssertionError says what went otherwise."""
    process = PrefectProcess(folder, {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT)})
    try:
        process.start()
        searches = Searches(folder, process.server)
        print(searches.run("setup"), flush=True)
        searches.write("killed", **CONFIG)
        long = CONFIG["evaluator"] | {"epochs": 60}
        searches.write("living", **CONFIG | {"evaluator": long})
        living, killed = searches.start("run", "living.yaml"), searches.start("run", "killed.yaml")
        wait_for_epoch(searches, "killed")
        wait_for_epoch(searches, "living")
        killed.send_signal(signal.SIGKILL)
        killed.communicate()
        began = time.monotonic()
        assert states(searches, "killed") == {"killed": "RUNNING", "killed: round 0": "RUNNING"}
        while set(states(searches, "killed").values()) != {"CRASHED"}:
            assert time.monotonic() - began < WITHIN + SLACK, f"still {states(searches, 'killed')}"
            time.sleep(1)
        print(f"CRASHED, with its round, {time.monotonic() - began:.0f} s after SIGKILL", flush=True)
        assert living.poll() is None and set(states(searches, "living").values()) == {"RUNNING"}
        print(searches.run("recover"), flush=True)
        assert states(searches, "killed") == {"killed": "COMPLETED", "killed: round 0": "COMPLETED"}
        living.send_signal(signal.SIGINT)
        living.communicate(timeout=60)
        assert states(searches, "living")["living"] == "CANCELLED"
    finally:
        process.end()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        run(Path(name))
