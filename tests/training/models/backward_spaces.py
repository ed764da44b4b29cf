"""Spaces whose models draw random numbers in their backward, too: in a Function, in a helper's, or in hooks."""

from typing import Any

import torch
from torch import nn

from nasflow.space.pick import Pick


class Shaken(torch.autograd.Function):
    """Passes gradients on in other shares than values, as in 'Shake-Shake regularization', arXiv:1705.07485."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand_like(x)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] * torch.rand_like(grads[0])


class Quiet(torch.autograd.Function):
    """Calls nothing in its forward, so that a trace does not see it."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> torch.Tensor:
        return grads[0] + 0.1 * torch.randn_like(grads[0])


def shaken(x: torch.Tensor) -> torch.Tensor:
    return Shaken.apply(x)


def quiet(x: torch.Tensor) -> torch.Tensor:
    return Quiet.apply(x)


class ByClass(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Shaken.apply(x)


class ByHelper(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return shaken(x)


class ByQuietHelper(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return quiet(x)


def _net(width: int, *body: nn.Module) -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), *body, nn.Linear(width, 3))


def by_class(pick: Pick) -> nn.Module:
    return _net(pick("width", [4, 6]), nn.Sequential(ByClass(), nn.Dropout(0.2)))


def by_helper(pick: Pick) -> nn.Module:
    return _net(pick("width", [4, 6]), ByHelper())


def by_quiet_helper(pick: Pick) -> nn.Module:
    return _net(pick("width", [4, 6]), ByQuietHelper())


def by_hook(pick: Pick) -> nn.Module:
    """Gradient noise."""
    model = _net(pick("width", [4, 6]))
    model[0].weight.register_hook(lambda grad: grad + 0.1 * torch.randn_like(grad))
    return model


class Untraced(nn.Module):
    """No graph shows it: it gives a view of what something else reads."""

    def __init__(self, width: int):
        super().__init__()
        self.body = _net(width, ByHelper())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x += 0.1
        return self.body(x) + 0.0 * x.sum()


def untraced(pick: Pick) -> nn.Module:
    return Untraced(pick("width", [4, 6]))
