"""Spaces for the tests of `nasflow plan`."""

import torch
from torch import nn


def trunk(pick):
    """A frozen trunk that all have in common, an activation that is searched, and a head of searched width."""
    layer = nn.Linear(64, 32)
    with torch.no_grad():
        for number, parameter in enumerate(layer.parameters(), start=1):
            parameter.fill_(0.01 * number).requires_grad_(False)
    width = pick("width", [8, 16])
    activation = pick("activation", {"relu": nn.ReLU, "tanh": nn.Tanh, "gelu": nn.GELU, "elu": nn.ELU})
    norm = nn.LayerNorm(32, elementwise_affine=False)
    return nn.Sequential(layer, norm, nn.Linear(32, width), activation, nn.Linear(width, 10))


class Overwriting(nn.Module):
    """Writes into the batch, which others read too."""

    def forward(self, x):
        return x.add_(1.0)


class Strange(nn.Module):
    """Decides by values, which no trace sees."""

    def forward(self, x):
        return x * 2 if float(x.detach().sum()) > 0 else x


def odd(pick):
    """Ordinary candidates, and odd ones of every kind."""
    kind = pick("kind", ["plain", "overwriting", "strange", "broken"])
    if kind == "broken" and torch.empty(0).device.type != "meta":
        raise ValueError("this one can't be built")
    width = pick("width", [8, 12])
    layers = {"overwriting": Overwriting, "strange": Strange}
    return nn.Sequential(layers.get(kind, nn.Identity)(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
