"""Losses and metrics by import path: they are called as they are, and what can't be used is said."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F

from nasflow.config.evaluator.metrics import MetricConfig
from nasflow.config.evaluator.supervised import ClassificationConfig, RegressionConfig
from nasflow.config.evaluator.target import Target
from nasflow.errors import ConfigError, TrialError
from nasflow.evaluator.ready_made.own_parts import make_loss, make_metric, metric_value
from nasflow.evaluator.ready_made.supervised import ClassificationModule, RegressionModule
from tests.evaluator.ready_made.group_members import alone

HERE = Path(__file__).parents[1]
DATA = {"target": "a:b"}


def classification(**values: Any) -> ClassificationModule:
    return ClassificationModule(nn.Identity(), ClassificationConfig.model_validate({"data": DATA, **values}), HERE)


def regression(**values: Any) -> RegressionModule:
    return RegressionModule(nn.Identity(), RegressionConfig.model_validate({"data": DATA, **values}), HERE)


def test_losses() -> None:
    logits, target = (
        torch.randn(5, 3, generator=torch.Generator().manual_seed(0)).double(),
        torch.tensor([0, 1, 2, 0, 1]),
    )
    focal = classification(loss={"target": "targets.py:Focal", "params": {"gamma": 0.0}})
    torch.testing.assert_close(focal.loss(logits, target), F.cross_entropy(logits, target))
    margin = classification(loss={"target": "torch.nn:MultiMarginLoss", "params": {"margin": 2.0}})
    assert torch.equal(margin.loss(logits, target), F.multi_margin_loss(logits, target, margin=2.0))
    quartic = regression(loss={"target": "targets.py:quartic", "params": {"scale": 3.0}})
    assert torch.equal(quartic.loss(logits, logits + 2), torch.tensor(48.0).double())
    assert "own_loss.gamma" in focal.state_dict(), "its buffers are saved, and move with the module"


def test_metrics_are_torchmetrics() -> None:
    logits = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
    target = torch.randint(6, (40,), generator=torch.Generator().manual_seed(1))
    metrics = [
        {"name": "top3", "top_k": 3},
        {"name": "top2", "target": "torchmetrics.classification:MulticlassAccuracy", "params": {"top_k": 2}},
        {"name": "task", "target": "torchmetrics:F1Score", "params": {"task": "multiclass", "average": "macro"}},
        {"name": "largest", "target": "targets.py:Largest"},
    ]
    [found] = alone([classification(metrics=metrics)], [], [(logits[None], target)])
    top3 = (logits.topk(3).indices == target[:, None]).any(1).double().mean().item()
    kinds = torchmetrics.classification
    assert found == pytest.approx(
        {
            "val_loss": F.cross_entropy(logits, target).item(),
            "val_top3": top3,
            "val_top2": kinds.MulticlassAccuracy(6, top_k=2)(logits, target).item(),
            "val_task": kinds.MulticlassF1Score(6, average="macro")(logits, target).item(),
            "val_largest": logits.amax(1).mean().item(),
        },
        rel=1e-6,
    )


def test_a_loss_that_is_no_number() -> None:
    values = torch.ones(3)
    with pytest.raises(
        TrialError, match=r"evaluator\.loss gave a tensor \(3,\); it should give a tensor with one number"
    ):
        regression(loss={"target": "targets.py:by_sample"}).loss(values, values)
    with pytest.raises(TrialError, match=r"evaluator\.loss gave a bool"):
        regression(loss={"target": "targets.py:is_equal"}).loss(values, values)


def test_a_metric_that_is_no_number() -> None:
    table = torchmetrics.classification.MulticlassConfusionMatrix(3)
    table.update(torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))
    with pytest.raises(TrialError, match=r"^metric val_t: MulticlassConfusionMatrix gives a tensor \(3, 3\); "):
        metric_value("val_t", table)


def test_more_places_than_classes() -> None:
    with pytest.raises(TrialError, match="top_k is 5, and the model tells 3 classes apart"):
        classification(metrics=[{"name": "top5", "top_k": 5}]).make_metrics(torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"target": "targets.py:Focus"}, "has no 'Focus'"),
        (
            {"target": "targets.py:Focal", "params": {"beta": 1}},
            r"targets.py:Focal does not take these params: .*'beta'",
        ),
        ({"target": "targets.py:quartic", "params": {"beta": 1}}, "targets.py:quartic does not take these params"),
        ({"target": "torch.nn:HuberLoss", "params": {"delta": 1, "reduction": {}}}, None),
        ({"target": "math:pi"}, "math:pi is not callable"),
        ({"target": "builtins:object"}, "a builtins:object is not callable"),
    ],
)
def test_losses_that_are_refused(config: dict[str, Any], said: str | None) -> None:
    if said is None:
        make_loss(Target.model_validate(config), HERE)  # torch looks at it later
        return
    with pytest.raises(ConfigError, match=said):
        make_loss(Target.model_validate(config), HERE)


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"target": "torch.nn:Linear"}, r"metrics \(m\): torch.nn:Linear should be a torchmetrics.Metric class"),
        (
            {"target": "torchmetrics:R2Score", "params": {"mass": 1}},
            r"metrics \(m\): Unexpected keyword arguments: `mass`",
        ),
        ({"target": "torchmetrics:R2Score", "name": "values"}, "torch reserves this name"),
        ({"target": "torchmetrics.classification:MulticlassAccuracy", "params": {"average": "odd"}}, "odd"),
    ],
)
def test_metrics_that_are_refused(config: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        make_metric(MetricConfig.model_validate({"name": "m", **config}), HERE, 3)


@pytest.mark.parametrize(
    ("kind", "values", "said"),
    [
        (ClassificationConfig, {"metrics": [{"name": "m"}]}, "give one of target and top_k"),
        (ClassificationConfig, {"metrics": ["f1", {"name": "f1", "top_k": 2}]}, "two metrics are named 'f1'"),
        (ClassificationConfig, {"metrics": [{"name": "loss", "top_k": 2}]}, "'val_loss' is logged anyway"),
        (
            ClassificationConfig,
            {"metrics": [{"name": "m", "target": "a:b", "params": {"beta": {"pick": [1, 2]}}}]},
            "the params of a metric can't be searched",
        ),
        (ClassificationConfig, {"loss": {"target": "a:b"}, "label_smoothing": 0.1}, "is of cross_entropy"),
        (RegressionConfig, {"metrics": [{"name": "m", "top_k": 2}]}, "'top_k' is of classification"),
    ],
)
def test_configs_that_are_refused(kind: Any, values: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        kind.model_validate({"data": DATA, **values})
