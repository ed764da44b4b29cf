"""Members of groups, batches for them, and what they log alone and together."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nasflow.config.search import ClassificationConfig, RegressionConfig
from nasflow.evaluator.ready_made.group_metrics import SupervisedGroup
from nasflow.evaluator.ready_made.supervised import ClassificationModule, RegressionModule, SupervisedModule
from nasflow.training.member.metrics.metric_log import Logbook

DATA = {"target": "a:b"}
CLASS_METRICS = ["accuracy", "f1", "precision", "recall", "auroc"]
ERROR_METRICS = ["mse", "rmse", "mae", "r2"]
Batch = tuple[Tensor, Tensor]  # outputs [N, B, ...], target [B, ...]
Logged = list[dict[str, float]]  # by member


def classification(**values: Any) -> ClassificationModule:
    """Its outputs are its inputs."""
    return ClassificationModule(nn.Identity(), ClassificationConfig.model_validate({"data": DATA, **values}))


def regression(**values: Any) -> RegressionModule:
    return RegressionModule(nn.Identity(), RegressionConfig.model_validate({"data": DATA, **values}))


@contextmanager
def in_double() -> Iterator[None]:
    """As within Lightning's `precision: 64-true`."""
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def alone(modules: Sequence[SupervisedModule], training: list[Batch], validation: list[Batch]) -> Logged:
    """What each module's own steps log in an epoch."""
    logged = []
    for row, module in enumerate(modules):
        book = Logbook()
        module.log = book.log  # type: ignore[method-assign]
        for index, (outputs, target) in enumerate(training):
            module.training_step((outputs[row], target), index)
        for index, (outputs, target) in enumerate(validation):
            module.validation_step((outputs[row], target), index)
        logged.append(book.close_epoch())
    return logged


def together(group: SupervisedGroup, training: list[Batch], validation: list[Batch]) -> Logged:
    """What the group makes of the same."""
    for outputs, target in training:
        group.losses(outputs, target)
        group.count(len(target))
    for outputs, target in validation:
        group.validate(outputs, target)
    pairs = zip(group.close_training(), group.close_validation(), strict=True)
    return [trained | validated for trained, validated in pairs]


def same(found: Logged, wanted: Logged, rel: float = 1e-12) -> None:
    assert [list(row) for row in found] == [list(row) for row in wanted], "the same names in the same order"
    for own, other in zip(found, wanted, strict=True):
        assert own == pytest.approx(other, rel=rel, abs=rel, nan_ok=True)


def logits(members: int, classes: int, sizes: Sequence[int], seed: int, dtype: Any = torch.float64) -> list[Batch]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (
            3 * torch.randn(members, size, classes, generator=generator, dtype=dtype),
            torch.randint(classes, (size,), generator=generator),
        )
        for size in sizes
    ]


def numbers(members: int, sizes: Sequence[int], seed: int, shape: str = "B", dtype: Any = torch.float64) -> list[Batch]:
    """`shape`: of outputs, then of targets."""
    generator = torch.Generator().manual_seed(seed)
    tails = {"B": ((), ()), "B1 B": ((1,), ()), "B B1": ((), (1,)), "B1 B1": ((1,), (1,)), "BT": ((3,), (3,))}[shape]
    batches = []
    for size in sizes:
        target = torch.randn(size, *tails[1], generator=generator, dtype=dtype)
        noise = torch.randn(members, size, *tails[0], generator=generator, dtype=dtype)
        batches.append((target.reshape(size, *tails[0]) + noise, target))
    return batches
