"""LightningModules with metrics of many kinds, in training and validation."""

import copy
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torchmetrics import classification

from tests.training.models.recorded_modules import Base


class Thresholds(Base):
    """Metrics that differ in tensors that they are made with."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr)
        self.curve = classification.MulticlassAUROC(3, thresholds=[0.1, 0.3, 0.5] if how == "a" else [0.4, 0.6, 0.9])

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        out = self.model(x)
        self.curve.update(out, y)
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("auroc", self.curve)


class AllMetrics(Base):
    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr)
        self.measure = {
            "auroc": lambda: classification.MulticlassAUROC(3, thresholds=5),
            "auroc-list": lambda: classification.MulticlassAUROC(3),
            "f1": lambda: classification.MulticlassF1Score(3, average="macro"),
            "top": lambda: classification.MulticlassAccuracy(3, top_k=2),
            "kappa": lambda: classification.MulticlassCohenKappa(3),
            "mcc": lambda: classification.MulticlassMatthewsCorrCoef(3),
            "calibration": lambda: classification.MulticlassCalibrationError(3),
            "minmax": lambda: torchmetrics.MinMaxMetric(classification.MulticlassAccuracy(3)),
            "composed": lambda: classification.MulticlassAccuracy(3) * 2,
            "hinge": lambda: classification.MulticlassHingeLoss(3),
            "jaccard": lambda: classification.MulticlassJaccardIndex(3),
            "exact": lambda: classification.MulticlassExactMatch(3),
        }[how]()
        self.scored = copy.deepcopy(self.measure)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        self.measure.update(out, y)
        return F.cross_entropy(out, y)

    def on_train_epoch_end(self) -> None:
        self.log("train_measure", self.measure.compute())
        self.measure.reset()

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        out = self.model(x)
        if len(x) > 12:
            self.scored.update(out, y)
        self.log("val_loss", F.cross_entropy(out, y))

    def on_validation_epoch_end(self) -> None:
        self.log("val_measure", self.scored.compute())
        self.scored.reset()


class Regressions(Base):
    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr)
        self.measure = {
            "r2": torchmetrics.R2Score,
            "mse": lambda: torchmetrics.MeanSquaredError(squared=False),
            "mse3": lambda: torchmetrics.MeanSquaredError(num_outputs=3),
            "kl": torchmetrics.KLDivergence,
            "kl-sum": lambda: torchmetrics.KLDivergence(reduction="sum"),
            "pearson": torchmetrics.PearsonCorrCoef,
            "cosine": torchmetrics.CosineSimilarity,
            "perplexity": lambda: torchmetrics.text.Perplexity(ignore_index=1),
            "explained": torchmetrics.ExplainedVariance,
            "minmax": lambda: torchmetrics.MinMaxMetric(torchmetrics.MeanSquaredError()),
            "running": lambda: torchmetrics.wrappers.Running(torchmetrics.MeanSquaredError(), window=3),
            "max": torchmetrics.MaxMetric,
            "mean": torchmetrics.MeanMetric,
            "collection": lambda: torchmetrics.MetricCollection(
                [torchmetrics.MeanSquaredError(), torchmetrics.MeanAbsoluteError()]
            ),
        }[how]()
        self.scored = copy.deepcopy(self.measure)
        self.kind = how.partition("-")[0]

    def measured(self, measure: Any, out: torch.Tensor, y: torch.Tensor) -> None:
        target = F.one_hot(y, 3).to(out.dtype)
        if self.kind in ("kl",):
            measure.update(out.softmax(1), target * 0.8 + 0.05)
        elif self.kind == "perplexity":
            measure.update(out[None].detach(), y[None])
        elif self.kind in ("max", "mean"):
            measure.update(out.square().mean())
        elif self.kind in ("r2", "pearson", "explained"):
            measure.update(out[:, 0], target[:, 0])
        else:
            measure(out, target)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        self.measured(self.measure, out, y)
        return F.cross_entropy(out, y)

    def report(self, name: str, measure: Any) -> None:
        value = measure.compute()
        for index, one in enumerate(value.values() if isinstance(value, dict) else [value]):
            self.log(f"{name}{index}", torch.as_tensor(one).double().mean())
        measure.reset()

    def on_train_epoch_end(self) -> None:
        self.report("train_measure", self.measure)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        out = self.model(x)
        self.measured(self.scored, out, y)
        self.log("val_loss", F.cross_entropy(out, y))

    def on_validation_epoch_end(self) -> None:
        self.report("val_measure", self.scored)


class Cost(torchmetrics.MeanMetric):
    """The mean cost of predicting one class for another, by a table that the checkpoint has, too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("costs", torch.arange(9.0).reshape(3, 3))

    def update(self, outputs: torch.Tensor, targets: torch.Tensor) -> None:
        super().update(self.costs[targets, outputs.argmax(1)])
