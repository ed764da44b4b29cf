"""The same space searched with every strategy of the examples, from YAML, through the Python API."""

import json
from pathlib import Path

import pytest

from tests.flows.forked_commands import run_forked
from tests.flows.searches import Searches

EXAMPLES = Path(__file__).parents[3] / "examples" / "strategies"
STRATEGIES = ["grid", "random", "evolution", "tpe", "nsga2"]

# In one process, for what a search costs beside its imports is what is looked at.
SCRIPT = """
import json, sys
from pathlib import Path
import torch
from nasflow.config.search import load_config
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.flows import search

for file in sys.argv[1:]:
    config = load_config(Path(file)).model_copy(update={"training_service": DebugServiceConfig()})
    result = search(config)
    best = result.best
    outputs = best.model(torch.zeros(3, 64))
    print(json.dumps({
        "strategy": config.strategy.kind,
        "trials": [trial.model_dump(mode="json") for trial in result.trials()],
        "best": best.metrics,
        "architecture": dict(best.architecture),
        "outputs": list(outputs.shape),
        "front": [other.metrics for other in result.leaderboard(3)],
    }))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory, prefect_server):
    """What each strategy found."""
    folder = tmp_path_factory.mktemp("strategies")
    files = [str(EXAMPLES / f"{name}.yaml") for name in STRATEGIES]
    done = run_forked(["python", "-c", SCRIPT, *files], folder, prefect_server.env, timeout=280)
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return {line["strategy"]: line for line in lines}


def test_examples_are_short():
    for file in EXAMPLES.glob("*.yaml"):
        assert len(file.read_text().splitlines()) < 20


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_strategy_searches_and_finds_something_good(found, strategy):
    line = found[strategy]
    assert len(line["trials"]) == 24
    assert all(trial["status"] == "trained" for trial in line["trials"])
    assert line["best"]["val_accuracy"] > 0.75
    assert line["outputs"] == [3, 10]


def test_one_objective_orders_by_its_value(found):
    scores = [trial["metrics"]["val_accuracy"] for trial in found["tpe"]["trials"]]
    assert found["tpe"]["best"]["val_accuracy"] == max(scores)


def test_two_objectives_give_a_front(found):
    def dominates(one, other):
        better = one["val_accuracy"] >= other["val_accuracy"] and one["parameters"] <= other["parameters"]
        return better and (one["val_accuracy"], one["parameters"]) != (other["val_accuracy"], other["parameters"])

    scores = [trial["metrics"] for trial in found["nsga2"]["trials"]]
    assert not any(dominates(score, found["nsga2"]["best"]) for score in scores)


def test_known_architectures_are_replayed_and_say_so(searches: Searches):
    searches.write(
        "again",
        space={"target": "spaces.py:mixed", "params": {"widths": [8, 12]}},
        evaluator={
            "kind": "classification",
            "data": {"target": "nasflow.evaluator.data:DigitsRows"},
            "epochs": 2,
        },
        strategy={"kind": "custom", "target": "strategies.py:Stubborn"},
        budget={"rounds": 2, "trials_per_round": 3},
        training_service={"kind": "debug"},
    )
    searches.run("run", "again.yaml")
    shown = searches.json("show", "again")
    assert [trial["replayed_from"] for trial in shown["trials"]] == [None, None, 0, 0, 1, 0]
    assert [trial["metrics"] for trial in shown["trials"][2:]] == [shown["trials"][i]["metrics"] for i in (0, 0, 1, 0)]
    assert {event["trial"] for event in searches.events("again") if event["kind"] == "epoch"} == {0, 1}
    assert [record["message"] for record in shown["rounds"]][1].startswith("3 of 3 trials scored (3 of them known")
