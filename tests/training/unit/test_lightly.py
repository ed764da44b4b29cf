"""LightningModules of the package lightly train in merged jobs as by themselves."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.own_environment import own_environment
from tests.training.fused_jobs import fused_and_apart, fused_members, interrupted_as_whole
from tests.training.jobs import BLOBS, evaluator, evictions, make_job, sample

pytestmark = pytest.mark.long

SPACE = "lightly_modules.py:encoders"
REQUIREMENTS = Path(__file__).parents[1] / "models" / "lightly_requirements.txt"


@pytest.fixture(autouse=True, scope="module")
def lightly() -> Iterator[None]:
    """The package, behind all packages of nasflow's environment; other tests do without torchvision."""
    place = str(next(own_environment("lightly", REQUIREMENTS).glob("lib/python*/site-packages")))
    if torch.version.cuda is None:  # the index has torchvision for CUDA, whose import needs its own operators
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    sys.path.append(place)
    yield
    sys.path.remove(place)
    for name in [name for name in sys.modules if name.partition(".")[0] in ("lightly", "torchvision")]:
        del sys.modules[name]


@pytest.mark.parametrize("name", ["Linear", "Finetune", "SimSiam"])
def test_a_module_of_lightly(name: str, tmp_path: Path) -> None:
    data = {"target": "lightly_modules.py:views"} if name == "SimSiam" else BLOBS
    module = {"target": f"lightly_modules.py:{name}", "params": {"lr": {"float": [1e-2, 1.0], "log": True}}}
    config: Any = evaluator(kind="lightning", module=module, data=data, precision="64-true", epochs=3)
    events = fused_and_apart(SPACE, config, tmp_path / "both", 4)
    assert not evictions(events) and fused_members(events) == {0, 1, 2, 3}
    interrupted_as_whole(make_job(SPACE, config, sample(SPACE, config, 3), fuse="always"), tmp_path / "resumed")
