"""LightningModules of the user that are fused end as if each had been stepped by itself."""

from pathlib import Path
from typing import Any

import pytest

from tests.training.fused_jobs import fused_and_apart
from tests.training.jobs import evaluator

STYLES = [
    *("Plain", "CustomLoss", "TwoCalls", "Mixup", "L1", "OwnParameter", "Teacher", "StepSchedule", "Groups"),
    *("SometimesNone", "SometimesNoneMomentum", "Forward", "NoGradFirst", "Counting"),
]


def lightning(name: str, **values: Any) -> Any:
    file = values.pop("file", "lockstep_modules.py")
    params = {"lr": {"float": [1e-2, 1e-1]}, **values.pop("params", {})}
    data = values.pop("data", {"target": "spaces.py:blobs"})
    module = {"target": f"{file}:{name}", "params": params}
    return evaluator(kind="lightning", module=module, data=data, **{"precision": "64-true", "epochs": 3, **values})


@pytest.mark.parametrize("name", STYLES)
@pytest.mark.parametrize("space", ["mixed", "images"])
def test_a_style(name: str, space: str, tmp_path: Path) -> None:
    if (space, name) == ("images", "Forward"):
        pytest.skip("it flattens images, which the space's models don't take")
    data = {"target": f"spaces.py:{'blobs' if space == 'mixed' else 'images'}"}
    fused_and_apart(f"fused_spaces.py:{space}", lightning(name, data=data), tmp_path, 5)


def test_batches_that_are_dicts(tmp_path: Path) -> None:
    fused_and_apart("fused_spaces.py:mixed", lightning("Dicts", data={"target": "spaces.py:dicts"}), tmp_path, 4)


def test_steps_that_write_into_their_batches(tmp_path: Path) -> None:
    config = lightning("Noisy", file="lightning_modules.py", params={"how": {"pick": ["always", "late", ""]}})
    fused_and_apart("fused_spaces.py:mixed", config, tmp_path, 6, all_fused=False)


@pytest.mark.parametrize("name", ["Adversarial", "Autocast"])
def test_what_can_t_be_fused_trains_by_itself(name: str, tmp_path: Path) -> None:
    fused_and_apart("fused_spaces.py:mixed", lightning(name), tmp_path, 4, all_fused=False)
