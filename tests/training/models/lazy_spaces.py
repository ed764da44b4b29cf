"""Spaces whose layers get their sizes from the data."""

import random
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick
from tests.training.models.lightning_modules import Plain
from tests.training.models.spaces import rows as rows_of_blobs


def doubles(batch_size: int = 16) -> tuple[TensorLoader, TensorLoader]:
    """The blobs in double precision."""
    x, y = rows_of_blobs()
    return TensorLoader((x[:64].double(), y[:64]), batch_size), TensorLoader((x[64:].double(), y[64:]), batch_size)


class Traced(nn.Module):
    """Leaves a trace of every call: in a buffer, in itself, and in all random streams."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.seen += 1
        return x * (1 + 0.01 * (float(torch.rand(())) + float(np.random.rand()) + random.random()))


def rows(pick: Pick) -> nn.Module:
    """Rows: lazy layers between others."""
    width = pick("width", [4, 8])
    layers: list[nn.Module] = []
    for _ in range(pick("depth", [1, 2])):
        layers += [nn.LazyLinear(width, bias=False), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Dropout(0.2)]
    return nn.Sequential(*layers, nn.Linear(width, 5), nn.Tanh(), nn.LazyLinear(3))


def images(pick: Pick) -> nn.Module:
    """Images `[B, 1, 6, 6]`."""
    width = pick("width", [2, 4])
    return nn.Sequential(
        *(nn.LazyConv2d(width, pick("kernel", [1, 3]), padding="same", bias=False), nn.LazyBatchNorm2d(), nn.ReLU()),
        *(nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(3)),
    )


def traced(pick: Pick) -> nn.Module:
    """`rows`, or its like with sizes, behind what leaves traces."""
    if pick("lazy", [True, False]):
        return nn.Sequential(Traced(), rows(pick))
    return nn.Sequential(Traced(), nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Dropout(0.2), nn.Linear(4, 3))


class Sometimes(nn.Module):
    """Drops its branch in training, always."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.branch = nn.LazyLinear(3), nn.LazyLinear(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x if self.training else x + self.branch(x))


class Unreached(nn.Module):
    """Has a lazy layer that it never uses."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.unused = nn.LazyLinear(3), nn.LazyLinear(6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x)


class TooFar(nn.Module):
    """Fails on every batch."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.LazyLinear(3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(x[:, [17]])


def reached(pick: Pick) -> nn.Module:
    """Lazy layers that are reached always, sometimes, or never."""
    kind = pick("kind", ["always", "sometimes", "never", "fails"])
    return {"always": lambda: nn.LazyLinear(3), "sometimes": Sometimes, "never": Unreached, "fails": TooFar}[kind]()


class Headed(Plain):
    """Has a lazy head of its own, takes its batches apart, and asks its trainer."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.head = nn.LazyLinear(3)
        self.steps_begun = 0

    def setup(self, stage: str) -> None:
        self.weight = 0.5

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.steps_begun += 1
        x, y = batch
        loss = self.weight * F.cross_entropy(self.head(self.model(x)), y) * (1 + self.trainer.current_epoch)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.head(self.model(x)), y))
