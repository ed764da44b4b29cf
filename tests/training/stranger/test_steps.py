"""Steps of strangers end merged as by themselves, whatever they read."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.training.unit.lockstep.joint.computed import Computed
from nasflow.training.unit.lockstep.joint.recorded import record
from tests.training.fused_jobs import fused_and_apart
from tests.training.unit.test_lockstep import lightning

pytestmark = pytest.mark.long

SPACE = "fused_spaces.py:mixed"
FILE = "stranger_steps.py"
UNLABELED = {"target": f"{FILE}:unlabeled"}


def stranger(name: str, **values: Any) -> Any:
    return lightning(name, **{"file": FILE, **values})


@pytest.mark.parametrize(
    "name",
    [
        *("ByClass", "ByClassMethod", "ByClassPlain", "ByParent", "ByParentsAttribute", "ByWrapped", "ByDefault"),
        *("ByFunctionAttribute", "ByTuple", "ByZero", "ByDtype", "Counts", "CountsUnique", "Lists", "Numpy", "Text"),
        *("Weighs", "Decays", "Swallows", "SwallowsLater", "ByEpochRaises", "Rises", "ByRebound", "ByNamedTuple"),
    ],
)
def test_what_a_step_reads(name: str, tmp_path: Path) -> None:
    fused_and_apart(SPACE, stranger(name), tmp_path, 4)


@pytest.mark.parametrize("name", ["Masks", "MasksMean", "Ignores", "Specific"])
def test_targets_that_are_missing(name: str, tmp_path: Path) -> None:
    fused_and_apart(SPACE, stranger(name, data=UNLABELED), tmp_path, 4)


@pytest.mark.parametrize(
    "how",
    [
        "auroc",
        "auroc-list",
        "f1",
        "top",
        "kappa",
        "mcc",
        "calibration",
        "minmax",
        "composed",
        "hinge",
        "jaccard",
        "exact",
    ],
)
def test_metrics(how: str, tmp_path: Path) -> None:
    fused_and_apart(
        SPACE, stranger("AllMetrics", file="stranger_metrics.py", params={"how": {"pick": [how]}}), tmp_path, 3
    )


@pytest.mark.parametrize(
    "how",
    [
        "r2",
        "mse",
        "mse3",
        "kl",
        "kl-sum",
        "pearson",
        "cosine",
        "perplexity",
        "explained",
        "minmax",
        "running",
        "max",
        "mean",
        "collection",
    ],
)
def test_more_metrics(how: str, tmp_path: Path) -> None:
    fused_and_apart(
        SPACE, stranger("Regressions", file="stranger_metrics.py", params={"how": {"pick": [how]}}), tmp_path, 3
    )


def test_constants_of_a_recording_do_not_change_afterwards() -> None:
    weight = torch.tensor([2.0])

    def run(outputs: torch.Tensor, *given: Any) -> Any:
        return given[-1], Computed((outputs * weight).sum(1), {}, {}, {}, {}, gradients=outputs * weight)

    outputs, x = torch.ones(3, 1), torch.ones(1)
    recording = record(run, (outputs, {}, {}, x), lambda: (frozenset(), ()))
    weight.zero_()
    assert recording.compute(outputs, {}, {}, x).losses.tolist() == [2.0, 2.0, 2.0]


def test_thresholds(tmp_path: Path) -> None:
    fused_and_apart(
        SPACE, stranger("Thresholds", file="stranger_metrics.py", params={"how": {"pick": ["a", "b"]}}), tmp_path, 6
    )
