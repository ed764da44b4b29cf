"""Batches, losses and hooks of strangers: merged, members end as by themselves."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.native import log_softmax, log_softmax_backward
from tests.training.fused_jobs import fused_and_apart, interrupted_as_whole
from tests.training.jobs import make_job, sample
from tests.training.unit.test_lockstep import lightning

SPACE = "fused_spaces.py:mixed"
FILE = "stranger_batches.py"


def stranger(name: str, how: str, **values: Any) -> Any:
    return lightning(name, file=FILE, params={"how": {"pick": [how]}}, **values)


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        "layouts",
        "aliases",
        "ids",
        "numbers",
        "named",
        "nested",
        "one",
        "sparse",
        "soft",
        "sizes",
        "dtypes",
        "nans",
        "numpy",
        "scalar",
    ],
)
def test_batches(how: str, tmp_path: Path) -> None:
    data = {"target": f"{FILE}:made", "params": {"how": how}}
    fused_and_apart(SPACE, stranger("Takes", "", data=data), tmp_path, 3, all_fused=how != "sparse")


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        "bce",
        "huber",
        "kl",
        "gaussian",
        "triplet",
        "cosine",
        "contrastive",
        "ctc",
        "poisson",
        "margin",
        "smooth",
        "sum",
        "cdist",
        "sort",
        "topk",
        "write",
        "gather",
        "group",
        "grad",
        "none",
    ],
)
def test_losses(how: str, tmp_path: Path) -> None:
    fused_and_apart(SPACE, stranger("Losses", how), tmp_path, 3, all_fused=how != "none")


@pytest.mark.long
@pytest.mark.parametrize(
    "how",
    [
        "frozen norm",
        "attribute",
        "deleted",
        "validation",
        "twice",
        "by epoch",
        "max",
        "tuple",
        "raises",
        "negative",
        "schedule",
        "method",
    ],
)
def test_hooks(how: str, tmp_path: Path) -> None:
    fused_and_apart(SPACE, stranger("Hooks", how), tmp_path, 4, all_fused=how != "tuple")


@pytest.mark.long
@pytest.mark.parametrize("name", ["Losses", "Hooks"])
def test_interrupted(name: str, tmp_path: Path) -> None:
    config = stranger(name, {"Losses": "contrastive", "Hooks": "by epoch"}[name], precision="32-true", epochs=3)
    interrupted_as_whole(make_job(SPACE, config, sample(SPACE, config, 4), fuse="always"), tmp_path)


@pytest.mark.parametrize("shape", [(1,), (1, 1), (3, 1), (5, 7), (17, 3), (2, 3, 4), (33, 1000), (1, 999)])
@pytest.mark.parametrize("kind", ["plain", "large", "tiny", "inf", "-inf", "nan", "all -inf", "expanded", "strided"])
def test_native_log_softmax(shape: tuple[int, ...], kind: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(shape)
    if kind in ("large", "tiny"):
        x = x * (1e38 if kind == "large" else 1e-42)
    elif kind == "all -inf":
        x[..., :] = float("-inf")
    elif kind in ("inf", "-inf", "nan"):
        x[..., 0] = float(kind)
    elif kind == "expanded":
        x = x[..., :1].expand(shape)
    elif kind == "strided":
        x = torch.randn((*shape, 2))[..., 1]
    found = log_softmax(x)
    if found is None:
        pytest.skip("no compiler")
    expected = torch.log_softmax(x, -1)
    torch.testing.assert_close(found, expected, equal_nan=True)
    gradient = torch.randn(shape)
    back = torch.ops.aten._log_softmax_backward_data(gradient, expected, -1, torch.float32)
    torch.testing.assert_close(log_softmax_backward(gradient, expected), back, equal_nan=True, rtol=1e-4, atol=1e-5)
