"""A job that counts, for tests of jobs that stand alone."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch

from nasflow.resumable.checkpoint_manager import CheckpointManager, MultiNodeCheckpointManager
from nasflow.resumable.job import CompiledJob, JobRunner


def begin(state: dict[str, Any], start: int) -> None:
    """A total, a module, and what happened."""
    state["total"] = start
    state["layer"] = torch.nn.Linear(2, 2)
    state["log"] = [*state.get("log", []), "init"]


def add(state: dict[str, Any], amount: int) -> None:
    """One epoch's work, told in a file if the state names one."""
    state["total"] += amount
    with torch.no_grad():
        state["layer"].weight.fill_(state["total"])
    state["log"].append(f"epoch {state['epoch'] + 1}")
    if "told" in state:
        with Path(state["told"]).open("a") as file:
            file.write(f"{state['epoch'] + 1} {state['total']}\n")


def pause(state: dict[str, Any], seconds: float) -> None:
    """Time to be killed in."""
    time.sleep(seconds)


def enough(state: dict[str, Any], most: int) -> bool:
    """A stop signal."""
    return bool(state["total"] >= most)


def end(state: dict[str, Any]) -> None:
    """The exit."""
    state["log"].append("exit")


def die_at(state: dict[str, Any], epoch: int) -> None:
    """Before an epoch is over."""
    if state["epoch"] + 1 == epoch:
        os.kill(os.getpid(), signal.SIGKILL)


def main(job: str, place: str, told: str, *node: str) -> None:
    """Run a compiled job, as one of several nodes if some are named: this one, then all."""
    names = ["total", "layer"]
    manager = (
        MultiNodeCheckpointManager(place, names, node=node[0], nodes=node[1:])
        if node
        else CheckpointManager(place, names)
    )
    loaded = CompiledJob.model_validate_json(Path(job).read_text()).load(Path.cwd())
    state = JobRunner(loaded, manager).run({"told": told})
    manager.close()
    Path(told).with_suffix(".end").write_text(f"{state['epoch']} {state['total']} {float(state['layer'].weight[0, 0])}")


if __name__ == "__main__":
    main(*sys.argv[1:])
