"""Spaces and modules for tests of half precision."""

from typing import Any

import torch
from torch import nn

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick
from tests.training.models.lightning_modules import Plain
from tests.training.models.spaces import rows


class Steep(nn.Module):
    """The identity, with gradients that are multiplied, so that they overflow if the losses are scaled by much."""

    def __init__(self, gain: float):
        super().__init__()
        self.gain = gain

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.gain - (x * (self.gain - 1)).detach()


def net(pick: Pick) -> nn.Module:
    width = pick("width", [8, 12])
    layers = [nn.Linear(6, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 3)]
    return nn.Sequential(*layers, Steep(pick("gain", [1, 64, 1024])))


def images(pick: Pick) -> nn.Module:
    width = pick("width", [8, 12])
    layers = [nn.Conv2d(1, width, 3), nn.BatchNorm2d(width), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(width, 3), Steep(pick("gain", [1, 64, 1024])))


class OwnHalf(nn.Module):
    """A layer that computes in full precision, whose gradients are computed in full precision, too."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            y: torch.Tensor = self.layer(x.float())
        return y


def with_full_layer(pick: Pick) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), OwnHalf(), nn.Linear(8, 3), Steep(pick("gain", [1, 1024])))


class Infinite(nn.Module):
    """Finite, but its gradient is infinite, or that of the identity."""

    def __init__(self, bad: bool):
        super().__init__()
        self.bad = bad

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + (x - x.detach()).abs().sqrt() if self.bad else x


def infinite(pick: Pick) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3), Infinite(pick("bad", [False, True])))


def blobs(batch_size: int = 16) -> tuple[TensorLoader, TensorLoader]:
    x, y = rows()
    return TensorLoader((x[:64], y[:64]), batch_size), TensorLoader((x[64:], y[64:]), batch_size)


class Hooked(Plain):
    """Keeps the norms of its gradients in each of Lightning's hooks around a step, and trains on half of them."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.register_buffer("norms", torch.zeros(3))

    def _norm(self) -> torch.Tensor:
        return torch.stack([p.grad.norm() for p in self.parameters() if p.grad is not None]).norm()

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.norms[0] += loss.detach()

    def on_after_backward(self) -> None:
        self.norms[1] += self._norm().nan_to_num(0.0, 0.0)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.norms[2] += self._norm().nan_to_num(0.0, 0.0)
        for parameter in self.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(0.5)


class Manual(Plain):
    """Steps its optimizer itself."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.automatic_optimization = False


class Several(Plain):
    """Trains with LBFGS."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=self.lr)
