"""A space whose model fails for some seeds."""

import torch
from torch import nn

from nasflow.space.pick import Pick
from tests.training.models.spaces import net


class Unlucky(nn.Module):
    """A net that fails in its second epoch of training if it was unlucky."""

    def __init__(self, model: nn.Module, fails: bool):
        super().__init__()
        self.model, self.fails, self.batches = model, fails, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches += self.training
        if self.fails and self.batches > 5:
            raise RuntimeError("out of luck")
        return self.model(x)


def luck() -> float:
    """The first number that a model draws."""
    return float(torch.rand(()))


def unlucky(pick: Pick) -> nn.Module:
    most = pick.float("most", 0.0, 1.0)
    fails = luck() > most
    if pick("when", ["build", "train"]) == "build" and fails:
        raise RuntimeError("out of luck")
    return Unlucky(net(pick), fails)
