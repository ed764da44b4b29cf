"""Test data, and LightningModules that are scored on it, right and wrong."""

from collections.abc import Iterable
from typing import Any

import torch
from pytorch_lightning import LightningDataModule
from torch import nn
from torch.nn import functional as F

from nasflow.evaluator.loading.loaders import TensorLoader
from tests.training.models.lightning_modules import Plain
from tests.training.models.spaces import rows


def unseen(batch_size: int = 7) -> TensorLoader:
    x, y = rows(size=120)
    return TensorLoader((x[96:], y[96:]), batch_size)


def validation() -> TensorLoader:
    """What `spaces.py:blobs` validates on."""
    x, y = rows()
    return TensorLoader((x[64:], y[64:]), 16)


def pictures() -> TensorLoader:
    x, y = rows(size=20, features=36)
    return TensorLoader((x.reshape(-1, 1, 6, 6), y), 8)


def pair() -> tuple[TensorLoader, TensorLoader]:
    return unseen(), unseen()


class UnseenModule(LightningDataModule):
    def setup(self, stage: str) -> None:
        self.stage = stage

    def test_dataloader(self) -> Iterable[Any]:
        assert self.stage == "test"
        return unseen()


class Tests(Plain):
    """Has a `test_step`, and a layer of its own that is trained with the model."""

    def __init__(self, model: nn.Module, how: str = ""):
        super().__init__(model, how=how)
        self.scale = nn.Parameter(torch.ones(()))
        self.seen = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.scale * self.model(batch[0]), batch[1])

    def on_test_epoch_start(self) -> None:
        assert not self.training
        if self.how == "raise":
            raise ValueError("it can't be tested")

    def test_step(self, batch: Any) -> None:
        self.seen += len(batch[0])
        self.log("test_nll", F.cross_entropy(self.scale * self.model(batch[0]), batch[1]))
        self.log("scale", self.scale)

    def on_test_epoch_end(self) -> None:
        self.log("test_size", float(self.seen))
