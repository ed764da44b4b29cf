"""A batch that needs more memory than there is goes on in smaller groups; a trial that does so alone fails for good."""

from typing import Any

import pytest

from tests.flows.searches import Searches
from tests.memory_limit import memory_limit

MIB = 2**20
LIMIT = 3200 * MIB  # for controller, worker and job; without what members hold they need about a third

CONFIG: dict[str, Any] = {
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 2},
    "strategy": {"kind": "grid"},
    "training_service": {"kind": "local", "slots": 1},
    "merge": {"fuse": "never"},
    "retry": {"delay_seconds": [0.1], "batch": 1, "alone": 3},
}


def run(searches: Searches, held: list[int]) -> dict[str, Any]:
    """What is on record of a search whose trials hold as many MiB, under the limit."""
    space = {"target": "spaces.py:greedy", "params": {"held": held}}
    searches.write("greedy", **CONFIG, space=space, budget={"rounds": 1, "trials_per_round": len(held)})
    with memory_limit(LIMIT) as limit:
        controller = searches.start_program("run", "greedy.yaml")
        limit.take(controller.pid)
        output, _ = controller.communicate(timeout=280)
    assert controller.returncode == 0, output
    shown: dict[str, Any] = searches.json("show", "greedy")
    return shown


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_batch_too_large_for_memory_trains_in_smaller_groups(searches):
    shown = run(searches, [753, 752, 751, 750])
    assert [trial["status"] for trial in shown["trials"]] == ["trained"] * 4
    (attempt,) = shown["attempts"]
    assert attempt["state"] == "succeeded", "no one had to train alone"
    (ending,) = attempt["endings"]
    assert (ending["failure"], ending["places"]) == ("trial", 2)
    assert ending["error"].startswith("the kernel ended the job's process for want of memory\nit held ")
    assert ending["evidence"]["oom_kills"] == 1 and ending["evidence"]["signal"] == 9
    assert ending["evidence"]["peak_rss"] > 1500 * MIB
    assert "for want of memory" in searches.run("show", "greedy")
    batch = next(run for run in searches.server.task_runs("nas-search", 4) if run["name"].startswith("train batch"))
    assert batch["run_count"] == 1, "Prefect's retries are for what was lost to infrastructure"
    assert batch["state"]["message"] == "4 of 4 trials trained, at most 2 at a time for want of memory"


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_trial_too_large_for_memory_fails_and_the_others_are_trained(searches):
    shown = run(searches, [50, 51, 4000])
    assert [trial["status"] for trial in shown["trials"]] == ["trained", "trained", "failed"]
    assert "for want of memory" in shown["trials"][2]["error"]
    batch, *alone = shown["attempts"]
    assert batch["endings"][0]["places"] == 1
    assert [attempt["members"] for attempt in alone] == [[2], [2]], "a second time alone showed that it repeats itself"
