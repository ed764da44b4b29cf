"""Searches whose jobs spread their trials over two devices, here logical ones on the CPU."""

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from nasflow.job.spec import JobSpec
from nasflow.testing.training_service import until
from tests.flows.searches import Searches

CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [4, 6, 8, 12, 16, 24], "delay": 0.005}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 4},
    "strategy": {"kind": "random"},
    "budget": {"rounds": 1, "trials_per_round": 6},
    "merge": {"fuse": "never"},  # so that results do not depend on who trains beside whom
    "retry": {"delay_seconds": [0.1]},
}


def on(devices: int) -> dict[str, Any]:
    """Where one job at a time takes so many devices."""
    return CONFIG | {"training_service": {"kind": "local", "slots": devices, "devices_per_job": devices}}


def assigned(searches: Searches, study: str) -> Iterator[dict[int, int]]:
    """The device of each trial, job by job."""
    for file in sorted((searches.folder / "nasflow-runs" / study / "jobs").glob("*/job.json")):
        spec = JobSpec.model_validate(json.loads(file.read_text()))
        yield {member.trial: member.device for member in [*spec.members, *spec.peers]}


@pytest.mark.long
def test_a_killed_search_goes_on_with_another_number_of_devices_to_the_same_results(searches: Searches) -> None:
    searches.write("one", **on(1))
    searches.run("run", "one.yaml")
    searches.write("two", **on(2))
    controller = searches.start("run", "two.yaml")
    until(lambda: sum(event["kind"] == "epoch" for event in searches.events("two")) >= 8, "8 epochs")
    os.kill(controller.pid, signal.SIGKILL)
    controller.communicate()
    searches.run("cleanup", "two")
    searches.write("two", **on(3))
    searches.run("run", "two.yaml")
    assert searches.json("leaderboard", "two") == searches.json("leaderboard", "one")
    first, later = assigned(searches, "two")
    assert set(first.values()) == {0, 1} and set(later.values()) == {0, 1, 2}
    assert set(next(assigned(searches, "one")).values()) == {0}
