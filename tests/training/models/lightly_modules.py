"""LightningModules of the package lightly that hold a candidate, which encodes rows of 6 numbers as 8."""

from typing import Any

import torch
from lightly.loss import NegativeCosineSimilarity
from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead
from lightly.utils.benchmarking import BenchmarkModule
from lightly.utils.benchmarking.linear_classifier import FinetuneClassifier, LinearClassifier
from torch import nn
from torch.utils.data import DataLoader

from nasflow.space.pick import Pick
from tests.training.models.fused_spaces import mixed
from tests.training.models.spaces import rows

_CLASSES = {"batch_size_per_device": 16, "feature_dim": 8, "num_classes": 3, "topk": (1, 2)}


def encoders(pick: Pick) -> nn.Module:
    return mixed(pick, outputs=8)


class Linear(LinearClassifier):
    """Trains a head on the candidate, which is frozen and in evaluation mode."""

    def __init__(self, model: nn.Module, lr: float):
        super().__init__(model, lr=lr, **_CLASSES)


class Finetune(FinetuneClassifier):
    """Trains the candidate and a head."""

    def __init__(self, model: nn.Module, lr: float):
        super().__init__(model, lr=lr, **_CLASSES)


class SimSiam(BenchmarkModule):
    """The example in BenchmarkModule's docstring: SimSiam, validated by nearest neighbours."""

    def __init__(self, model: nn.Module, lr: float):
        super().__init__(DataLoader(_Samples(), 16), 3, knn_k=5)
        self.lr = lr
        self.backbone = model
        self.projection_head, self.prediction_head = SimSiamProjectionHead(8, 8, 8), SimSiamPredictionHead(8, 4, 8)
        self.criterion = NegativeCosineSimilarity()

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        z = self.projection_head(self.backbone(x).flatten(start_dim=1))
        return z.detach(), self.prediction_head(z)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        (x0, x1), _, _ = batch
        z0, p0 = self.forward(x0)
        z1, p1 = self.forward(x1)
        loss: torch.Tensor = 0.5 * (self.criterion(z0, p1) + self.criterion(z1, p0))
        return loss

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        return [torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)]


class _Samples(torch.utils.data.Dataset[tuple[Any, int, str]]):
    """Rows, or two noisy views of each, with their classes and names, as lightly's data sets give them."""

    def __init__(self, views: bool = False):
        x, self._y = rows(64)
        self._x = x.double()
        self._views = views

    def __len__(self) -> int:
        return len(self._y)

    def __getitem__(self, index: int) -> tuple[Any, int, str]:
        x = self._x[index]
        views = [x + 0.1 * torch.randn_like(x) for _ in range(2)] if self._views else x
        return views, int(self._y[index]), f"{index}.png"


def views() -> tuple[DataLoader[Any], DataLoader[Any]]:
    return DataLoader(_Samples(views=True), 16, shuffle=True), DataLoader(_Samples(), 16)
