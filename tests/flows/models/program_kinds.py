"""The same training three ways: a LightningModule, a plain function, and (`program_train.py`) a program of its own."""

from collections.abc import Iterable
from typing import Any

import torch
from pytorch_lightning import LightningModule
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from nasflow.space.pick import Pick


def make_net(width: int) -> nn.Module:
    """Its weights follow from its width alone."""
    net = nn.Sequential(nn.Linear(64, width), nn.Tanh(), nn.Linear(width, 10))
    generator = torch.Generator().manual_seed(width)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.copy_(0.3 * torch.randn(parameter.shape, generator=generator))
    return net


def net(pick: Pick) -> nn.Module:
    return make_net(pick("width", [8, 16, 24]))


def data() -> tuple[list[Any], list[Any]]:
    """Six batches to train on, always in the same order, and one to validate on."""
    rows, classes = load_digits(return_X_y=True)
    x, y = torch.as_tensor(rows / 16, dtype=torch.float32), torch.as_tensor(classes)
    return [(x[i : i + 200], y[i : i + 200]) for i in range(0, 1200, 200)], [(x[1200:], y[1200:])]


def scores(model: nn.Module, batch: Iterable[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    x, y = batch
    logits = model(x)
    return F.cross_entropy(logits, y), (logits.argmax(-1) == y).float().mean()


class Module(LightningModule):
    def __init__(self, model: nn.Module, lr: float):
        super().__init__()
        self.model, self.lr = model, lr

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return scores(self.model, batch)[0]

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        loss, accuracy = scores(self.model, batch)
        self.log_dict({"val_loss": loss, "val_accuracy": accuracy}, batch_size=len(batch[0]))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), self.lr)


def train(model: nn.Module, report: Any, lr: float) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr)
    batches, (validation,) = data()
    while True:
        for batch in batches:
            optimizer.zero_grad()
            scores(model, batch)[0].backward()
            optimizer.step()
        with torch.no_grad():
            loss, accuracy = scores(model, validation)
        report(val_loss=loss, val_accuracy=accuracy)
