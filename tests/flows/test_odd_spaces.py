"""Spaces that look at values while they build, and spaces of lazy layers: from a config to an export."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from tests.flows.forked_commands import run_forked
from tests.flows.searches import Searches

STAGES: dict[str, Any] = {"space": {"target": "spaces.py:stages"}, "data": "DigitsRows"}
LAZILY: dict[str, Any] = {"space": {"target": "spaces.py:lazily"}, "data": "Digits"}
LOAD = """
import torch
from score import load
model = load()
print(model)
model(torch.zeros(2, {shape}))
"""


def config(space: dict[str, Any], data: str) -> dict[str, Any]:
    optimizer = {"name": "adamw", "lr": {"float": [0.001, 0.01], "log": True}}
    target = {"target": f"nasflow.evaluator.data:{data}"}
    return {
        "space": space,
        "evaluator": {"kind": "classification", "data": target, "epochs": 2, "optimizer": optimizer},
        "objectives": [
            {"metric": "val_accuracy", "direction": "maximize"},
            {"metric": "parameters", "direction": "minimize"},
        ],
        "budget": {"rounds": 2, "trials_per_round": 3},
        "strategy": {"kind": "tpe", "params": {"n_startup_trials": 2}},
        "merge": {"fuse": "always"},
        "training_service": {"kind": "debug"},
    }


@pytest.mark.long
@pytest.mark.parametrize("name", ["stages", "lazily"])
def test_from_the_config_to_an_export(name: str, searches: Searches) -> None:
    searches.write(name, **config(**(STAGES if name == "stages" else LAZILY)))
    told = searches.run_program("validate", f"{name}.yaml")  # as Prefect is not imported there, warnings are shown
    assert f"{name}.yaml is valid" in told
    assert (f"spaces.py:{name}' looks at values while it builds, so it is built for real" in told) == (name == "stages")
    searches.run("run", f"{name}.yaml", "--export-best", "best")
    shown = searches.json("show", name)
    assert [trial["status"] for trial in shown["trials"]] == ["trained"] * 6
    assert {each["state"] for each in shown["rounds"]} == {"completed"}
    planned = [event for event in searches.events(name) if event["kind"] == "planned"]
    assert {member for event in planned for unit in event["units"] for member in unit["members"]} >= {0, 1, 2}

    best = searches.folder / "best"
    scored = run_forked(["python", best / "score.py"], Path("/"), os.environ)
    assert scored.returncode == 0, scored.stderr
    answer = json.loads(scored.stdout)
    assert answer["different"] == answer["missing"] == []
    weights = load_file(best / "model.safetensors")
    held = sum(tensor.numel() for key, tensor in weights.items() if key.endswith(("weight", "bias")))
    assert answer["recorded"]["parameters"] == held > 0

    code = LOAD.format(shape="64" if name == "stages" else "1, 8, 8")
    loaded = run_forked(["python", "-c", code], best, os.environ)
    assert loaded.returncode == 0, loaded.stderr
    assert "Linear(" in loaded.stdout and "Lazy" not in loaded.stdout


def test_a_layer_that_no_batch_reaches_is_named(searches: Searches) -> None:
    searches.write("unreached", **config({"target": "spaces.py:unreached"}, "DigitsRows"))
    for command in ("validate", "run"):
        told = searches.run(command, "unreached.yaml", code=2)
        assert "error: space.target: lazy layer 'model.unused' has no size" in told
        assert "Traceback" not in told
