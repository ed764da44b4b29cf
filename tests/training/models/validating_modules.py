"""LightningModules with metrics that validate what they are given, and data that is wrong on the way."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import BinaryAccuracy, MulticlassAccuracy, MulticlassConfusionMatrix

from nasflow.evaluator.loading.loaders import TensorLoader
from tests.training.models.recorded_modules import Base
from tests.training.models.spaces import rows


def wrong_later() -> tuple[TensorLoader, TensorLoader]:
    """Validation has batches of equal size; in the second, a target is out of range."""
    x, y = rows()
    wrong = y[64:80].clone()
    wrong[13] = 7
    return TensorLoader((x[:64], y[:64]), 16, shuffle=True), TensorLoader((x[64:80], wrong), 8)


def sizes(out: torch.Tensor) -> torch.Tensor:
    return (out.detach().abs().amax(1) > 100).long() * 2


class Validates(Base):
    """Scores its classes against the targets: the metric is the same for all."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = "accuracy"):
        super().__init__(model, lr, how)
        kinds = {
            "accuracy": lambda: MulticlassAccuracy(3, average="micro"),
            "confusion": lambda: MulticlassConfusionMatrix(3),
        }
        self.measure = kinds[how]()

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        out = self.model(x)
        self.measure.update(out, y)
        self.log("val_loss", F.mse_loss(out, torch.ones_like(out)))


class TakesSmall(Base):
    """Its metric, of classes 0 and 1, is given a 2 by a member whose outputs are large, in training or validation."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.train_measure, self.measure = BinaryAccuracy(), BinaryAccuracy()

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        if self.how == "training":
            self.train_measure.update(sizes(out), torch.zeros_like(y))
        return F.cross_entropy(out, y)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        out = self.model(x)
        if self.how == "validation":
            self.log("batch_accuracy", self.measure(sizes(out), torch.zeros_like(y)))
            self.log("val_accuracy", self.measure)
        self.log("val_loss", F.cross_entropy(out, y))
