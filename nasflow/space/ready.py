"""Ready-made spaces: `nasflow.space.ready:mlp` and `nasflow.space.ready:cell_cnn`."""

from collections.abc import Callable, Sequence

import torch
from torch import nn

from nasflow.errors import SpaceError
from nasflow.space.layers import LayerChoice, Repeat
from nasflow.space.pick import Pick


def mlp(
    pick: Pick,
    *,
    in_features: int = 64,
    classes: int = 10,
    widths: Sequence[int] = (16, 32, 64),
    max_depth: int = 3,
    dropout: Sequence[float] = (0.0, 0.1, 0.2),
) -> nn.Module:
    """Fully connected layers: searched depth, width of each layer, activation and dropout.

    The input `[B, ...]` is flattened to `[B, in_features]`; the output is `[B, classes]`.
    """
    features = in_features
    layers: list[nn.Module] = [nn.Flatten()]
    for index in range(pick.int("depth", 1, max_depth)):
        width = pick(f"width{index}", widths)
        activation = LayerChoice(pick, "activation", {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh})
        layers += [nn.Linear(features, width), activation, nn.Dropout(pick("dropout", dropout))]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, classes))


def cell_cnn(
    pick: Pick,
    *,
    in_channels: int = 1,
    classes: int = 10,
    image_size: int = 8,
    widths: Sequence[int] = (8, 12, 16),
    max_cells: int = 3,
    positions: int = 2,
) -> nn.Module:
    """A small convolutional network of searched width: a stem, 1 to `max_cells` residual cells, a linear head.

    Each of a cell's `positions` chooses its operation. A max-pool halves the image between two cells; the head sees the
    averages of its four quarters. `[B, in_channels, image_size, image_size]` becomes `[B, classes]`.

    Raises:
        SpaceError: `image_size` is too small to be halved for `max_cells`.
    """
    if image_size < 2**max_cells:
        raise SpaceError(f"cell_cnn: {max_cells} cells need an image_size of at least {2**max_cells}, not {image_size}")
    width = pick("width", widths)

    def cell(index: int) -> nn.Module:
        residual = _Residual(*(_operation(pick, f"cell{index}/op{place}", width) for place in range(positions)))
        return residual if index == 0 else nn.Sequential(nn.MaxPool2d(2), residual)

    stem = _conv(in_channels, width, 3)
    cells = Repeat(pick, "cells", cell, (1, max_cells))
    side = image_size // 2 ** (len(cells) - 1)
    # Not an adaptive pool: the gradient of that is not deterministic on CUDA.
    regions = (side // (side // 2)) ** 2
    head = [nn.AvgPool2d(side // 2), nn.Flatten(), nn.Linear(regions * width, classes)]
    return nn.Sequential(stem, cells, *head)


def _operation(pick: Pick, label: str, width: int) -> nn.Module:
    """One layer `[B, width, H, W] -> [B, width, H, W]`."""
    candidates: dict[str, Callable[[], nn.Module]] = {
        "conv3x3": lambda: _conv(width, width, 3),
        "conv5x5": lambda: _conv(width, width, 5),
        "depthwise3x3": lambda: _conv(width, width, 3, groups=width),
        "conv1x1": lambda: _conv(width, width, 1),
        "maxpool": lambda: nn.MaxPool2d(3, stride=1, padding=1),
        "skip": nn.Identity,
    }
    return LayerChoice(pick, label, candidates)


def _conv(in_channels: int, out_channels: int, kernel: int, groups: int = 1) -> nn.Module:
    convolution = nn.Conv2d(in_channels, out_channels, kernel, padding=kernel // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU())


class _Residual(nn.Module):
    """`x + layers(x)`, shape kept."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[B, C, H, W]` to the same shape."""
        output: torch.Tensor = x + self.layers(x)
        return output
