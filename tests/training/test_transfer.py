"""Runs of batches are copied to a device at once, and are the same batches there."""

from typing import Any

import pytest
import torch

from nasflow.evaluator.loading.folds import ByFold
from nasflow.training.batches.batch_runs import Run
from nasflow.training.batches.transfer import run_on

CPU = torch.device("cpu")
X, Y = torch.arange(60.0).view(20, 3), torch.arange(20)


@pytest.mark.parametrize(
    "run",
    [
        Run([(X[:8], Y[:8]), (X[8:16], Y[8:16]), (X[16:], Y[16:])]),
        Run([{"x": X[:8], "more": [Y[:8]]}, {"x": X[8:], "more": [Y[8:]]}]),
        Run([X[:1]]),
    ],
)
def test_the_same_batches(run: Run) -> None:
    moved = run_on(CPU, run)
    assert isinstance(moved, Run)
    torch.testing.assert_close(list(moved), list(run), rtol=0, atol=0)
    first = [batch["x"] if isinstance(batch, dict) else batch[0] for batch in moved]
    assert len({tensor.untyped_storage().data_ptr() for tensor in first}) == 1, "they were copied together"


@pytest.mark.parametrize(
    "batches",
    [
        [(X, Y), (X, X)],
        [(X, Y), (X[:, :2].contiguous(), Y)],
        [(X, Y), [X, Y]],
        [(X, 3), (X, 4)],
        [(X, torch.tensor(1.0)), (X, torch.tensor(2.0))],
        [(X.t(), Y), (X.t(), Y)],
        [(X.to_sparse(), Y)],
        [ByFold((X, None)), ByFold((X, X))],
        [],
    ],
)
def test_other_batches_are_left_to_lightning(batches: list[Any]) -> None:
    assert run_on(CPU, Run(batches)) is None
