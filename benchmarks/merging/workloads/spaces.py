"""The spaces of the workloads: ordinary `build(pick, ...)` programs that import nothing but torch."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn

from benchmarks.merging.workloads.fault import KINDS, Fault

NARROW = (16, 32, 48, 64)
WIDE = (16, 32, 64, 128, 256)
ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh}


def mixed_mlp(pick: Any, *, widths: Sequence[int] = NARROW, in_features: int = 64, classes: int = 10) -> nn.Module:
    """W1: one width and one activation per model, 1 to 3 hidden layers. `[B, in_features]` to `[B, classes]`."""
    width = pick("width", list(widths))
    activation = pick("activation", list(ACTIVATIONS))
    layers: list[nn.Module] = []
    features = in_features
    for _ in range(pick("depth", [1, 2, 3])):
        layers += [nn.Linear(features, width), ACTIVATIONS[activation]()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, classes))


def cell_chain(
    pick: Any,
    *,
    channels: int = 8,
    positions: int = 4,
    image_size: int = 8,
    classes: int = 10,
    fault_step: int | None = None,
) -> nn.Module:
    """W2: a stem, `positions` searched operations of `channels` channels, the average of each channel, a linear head.

    With `fault_step` (W5) each member also picks whether and how it fails at that training step.
    """
    stem = _conv(1, channels, 3)
    operations = [_operation(pick, f"op{place}", channels) for place in range(positions)]
    head = [nn.AvgPool2d(image_size), nn.Flatten(), nn.Linear(channels, classes)]
    model = nn.Sequential(stem, *operations, *head)
    if fault_step is not None and (kind := pick("fault", list(KINDS))) != "none":
        model.append(Fault(kind, fault_step))
    return model


def _operation(pick: Any, label: str, channels: int) -> nn.Module:
    """Return one layer from `[B, channels, H, W]` to the same shape."""
    candidates: dict[str, Callable[[], nn.Module]] = {
        "conv3x3": lambda: _conv(channels, channels, 3),
        "conv5x5": lambda: _conv(channels, channels, 5),
        "depthwise3x3": lambda: _conv(channels, channels, 3, groups=channels),
        "conv1x1": lambda: _conv(channels, channels, 1),
        "maxpool": lambda: nn.MaxPool2d(3, stride=1, padding=1),
        "skip": nn.Identity,
    }
    layer: nn.Module = pick(label, candidates)
    return layer


def _conv(in_channels: int, out_channels: int, kernel: int, groups: int = 1, stride: int = 1) -> nn.Module:
    padding = kernel // 2
    convolution = nn.Conv2d(in_channels, out_channels, kernel, stride, padding, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(out_channels), nn.ReLU())


def small_cnn(pick: Any, *, image_size: int = 32, classes: int = 10) -> nn.Module:
    """W3: a strided stem and two searched layers, the second on half the side. `[B, 3, S, S]` to `[B, classes]`."""
    channels = pick("channels", [8, 12, 16])
    stem = _conv(3, channels, 3, stride=2)
    first = _operation(pick, "op0", channels)
    second = _operation(pick, "op1", channels)
    head = [nn.AvgPool2d(image_size // 4), nn.Flatten(), nn.Linear(channels, classes)]
    return nn.Sequential(stem, first, nn.MaxPool2d(2), second, *head)


class Residual(nn.Module):
    """`x + layers(x)`."""

    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map a tensor to one of the same shape."""
        out: torch.Tensor = x + self.layers(x)
        return out


class FrozenTrunk(nn.Module):
    """W4: a fixed random network `[B, 1, 32, 32]` to `[B, 256]`, always in eval mode; every instance is the same."""

    features = 256

    def __init__(self, seed: int = 0):
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            halved = [_conv(1, 32, 3, stride=2), _conv(32, 64, 3, stride=2)]
            blocks = [*halved, _conv(64, 128, 3), _conv(128, 64, 3)]
            self.blocks = nn.Sequential(*blocks, nn.Flatten(), nn.Linear(64 * 8 * 8, self.features))
        self.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> "FrozenTrunk":
        """Stay in eval mode, as is usual for a frozen network."""
        return super().train(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the features."""
        features: torch.Tensor = self.blocks(x)
        return features


class _Adapter(nn.Module):
    """`x + up(activation(down(norm(x))))`, as in Houlsby et al. 2019. `[B, features]` to the same shape."""

    def __init__(self, features: int, bottleneck: int, activation: nn.Module):
        super().__init__()
        down, up = nn.Linear(features, bottleneck), nn.Linear(bottleneck, features)
        self.layers = nn.Sequential(nn.LayerNorm(features), down, activation, up)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the adapted features."""
        adapted: torch.Tensor = x + self.layers(x)
        return adapted


def adapted_trunk(pick: Any, *, classes: int = 10) -> nn.Module:
    """W4: the frozen trunk, searched adapters on its features, a linear head."""
    bottleneck = pick("bottleneck", [16, 32, 64])
    activation = pick("activation", list(ACTIVATIONS))
    width = FrozenTrunk.features
    adapters = [_Adapter(width, bottleneck, ACTIVATIONS[activation]()) for _ in range(pick("depth", [1, 2]))]
    return nn.Sequential(FrozenTrunk(), *adapters, nn.Linear(width, classes))
