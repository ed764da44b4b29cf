"""A search whose trials train on two nodes of a real Slurm each; whatever is killed there, no epoch is lost."""

import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.flows.searches import PrefectServer, Searches
from tests.slurm import Slurm, slurm

__all__ = ["slurm"]

EPOCHS = 5
CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 16], "delay": 0.02}},
    "evaluator": {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:DigitsRows"},
        "epochs": EPOCHS,
        "optimizer": {"name": "sgd", "lr": 0.1},
        "parallel": {"devices": 1, "nodes": 2},
    },
    "strategy": {"kind": "grid"},
    "budget": {"rounds": 1, "trials_per_round": 2},
    "retry": {"delay_seconds": [0.1]},
    "training_service": {"kind": "slurm", "max_jobs": 1, "poll_seconds": 0.3},
}
KILLED = {0: "rank", 1: "job"}
"""What of each trial."""


@pytest.mark.long
@pytest.mark.timeout(600)
def test_each_trial_loses_a_process_and_no_epoch(prefect_server: PrefectServer, slurm: Slurm, tmp_path: Path) -> None:
    searches = Searches(tmp_path, PrefectServer(prefect_server.url, prefect_server.env | slurm.environment))
    searches.write("nodes", **CONFIG)
    with searches.start("run", "nodes.yaml") as process:
        left = dict(KILLED)
        while left:
            assert process.poll() is None, process.communicate()
            for trial in [trial for trial in left if _epochs(searches, trial)]:
                _kill(searches, trial, left.pop(trial))
            time.sleep(0.02)
        output = process.communicate(timeout=400)[0]
        assert process.wait() == 0, output
    found = searches.json("show", "nodes")["trials"]
    assert [trial["status"] for trial in found] == ["trained"] * len(KILLED)
    assert [_epochs(searches, trial) for trial in KILLED] == [[*range(1, EPOCHS + 1)]] * len(KILLED), "each once"
    jobs = [event for event in searches.events("nodes") if event["kind"] == "started"]
    assert len(jobs) == 2 * len(KILLED), "each trial began twice"
    assert not slurm.call("squeue", "--noheader").strip()
    searches.run("export", "nodes", "--out", "best")
    assert list((searches.folder / "best").rglob("*.safetensors"))


def _epochs(searches: Searches, trial: int) -> list[int]:
    """Those on record, each as often as it was trained."""
    return [
        event["epoch"]
        for event in searches.events("nodes")
        if event["kind"] == "epoch" and event["trial"] == trial and not event["replayed"]
    ]


def _kill(searches: Searches, trial: int, what: str) -> None:
    if what == "job":
        psutil.Process([event["pid"] for event in searches.events("nodes") if event["kind"] == "started"][-1]).kill()
        return
    place = str(searches.folder / "nasflow-runs/nodes/trials" / f"{trial:05d}")
    started = [process for process in psutil.process_iter() if _is_of_node(process, place)]
    (program,) = [each for each in started if each.ppid() not in {other.pid for other in started}]
    program.children()[0].kill()


def _is_of_node(process: psutil.Process, place: str) -> bool:
    try:
        command = process.cmdline()
    except psutil.Error:
        return False
    return command[1:4] == ["-P", "-m", "nasflow.training.wide.node"] and command[4].startswith(place)
