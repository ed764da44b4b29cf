"""W6: cells as in NAS-Bench-201 (Dong and Yang 2020): four nodes, each the sum of an operation on every earlier one."""

from typing import Any

import torch
from torch import nn

_EDGES = [(source, node) for node in range(1, 4) for source in range(node)]


def nasbench_cells(
    pick: Any, *, channels: int = 16, max_cells: int = 5, classes: int = 10, stages: int = 3
) -> nn.Module:
    """Return a model from `[B, 3, S, S]` to `[B, classes]`: a stem, `stages` of 1 to `max_cells` equal cells, a head.

    Cells are searched. Between stages, the side is halved and the channels are doubled.
    """
    kinds = [pick(f"{source}->{node}", ["skip", "conv1x1", "conv3x3", "avgpool3x3"]) for source, node in _EDGES]
    cells = pick("cells", list(range(1, max_cells + 1)))
    layers: list[nn.Module] = [nn.Conv2d(3, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)]
    for stage in range(stages):
        if stage:
            layers.append(_Reduction(channels))
            channels *= 2
        layers += [_Cell(kinds, channels) for _ in range(cells)]
    layers += [nn.BatchNorm2d(channels), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(channels, classes))


class _Cell(nn.Module):
    def __init__(self, kinds: list[str], channels: int):
        super().__init__()
        self.edges = nn.ModuleList([_operation(kind, channels) for kind in kinds])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map `[B, C, H, W]` to the same shape."""
        states = [x]
        edges = iter(self.edges)
        for node in range(1, 4):
            states.append(sum(next(edges)(states[source]) for source in range(node)))
        return states[-1]


class _Reduction(nn.Module):
    """A residual block of stride 2: `[B, C, H, W]` to `[B, 2C, H/2, W/2]`."""

    def __init__(self, channels: int):
        super().__init__()
        first = _ReLUConv(channels, 2 * channels, 3, stride=2)
        self.layers = nn.Sequential(first, _ReLUConv(2 * channels, 2 * channels, 3))
        self.shortcut = nn.Sequential(nn.AvgPool2d(2), nn.Conv2d(channels, 2 * channels, 1, bias=False))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the reduced images."""
        reduced: torch.Tensor = self.layers(x) + self.shortcut(x)
        return reduced


class _ReLUConv(nn.Sequential):
    def __init__(self, in_channels: int, out_channels: int, kernel: int, stride: int = 1):
        convolution = nn.Conv2d(in_channels, out_channels, kernel, stride, kernel // 2, bias=False)
        super().__init__(nn.ReLU(), convolution, nn.BatchNorm2d(out_channels))


def _operation(kind: str, channels: int) -> nn.Module:
    if kind == "skip":
        return nn.Identity()
    if kind == "avgpool3x3":
        return nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)
    return _ReLUConv(channels, channels, 3 if kind == "conv3x3" else 1)
