"""W9's space: models of twenty kinds for images of digits, `[B, 1, 8, 8]` to `[B, 10]`."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.merging.workloads.spaces import Residual

SIDE = 8
CLASSES = 10


class Gated(nn.Module):
    """A layer of which each output is scaled by a gate. `[B, features]` to `[B, width]`."""

    def __init__(self, features: int, width: int, gate: Callable[[torch.Tensor], torch.Tensor]):
        super().__init__()
        self.value, self.gate, self.squash = nn.Linear(features, width), nn.Linear(features, width), gate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the gated values."""
        out: torch.Tensor = self.value(x) * self.squash(self.gate(x))
        return out


class SelfAttention(nn.Module):
    """`x + attention(norm(x))`. `[B, tokens, width]` to the same shape."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(width), nn.MultiheadAttention(width, heads, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the attended tokens."""
        y = self.norm(x)
        out: torch.Tensor = x + self.attention(y, y, y, need_weights=False)[0]
        return out


class Attending(nn.Module):
    """The rows of an image as tokens, blocks of attention and of a perceptron, the mean of the tokens."""

    def __init__(self, width: int, heads: int, depth: int):
        super().__init__()
        self.embed = nn.Linear(SIDE, width)
        blocks: list[nn.Module] = []
        for _ in range(depth):
            wide = [nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)]
            blocks += [SelfAttention(width, heads), Residual(*wide)]
        self.blocks, self.head = nn.Sequential(*blocks), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        out: torch.Tensor = self.head(self.blocks(self.embed(x.squeeze(1))).mean(1))
        return out


class Recurrent(nn.Module):
    """The rows of an image as a sequence, the last output of a recurrent layer."""

    def __init__(self, kind: type[nn.RNNBase], width: int):
        super().__init__()
        self.layer, self.head = kind(SIDE, width, batch_first=True), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return the logits."""
        outputs, _ = self.layer(x.squeeze(1))
        out: torch.Tensor = self.head(outputs[:, -1])
        return out


def _perceptron(width: int, depth: int, activation: type[nn.Module]) -> nn.Module:
    layers: list[nn.Module] = [nn.Flatten()]
    features = SIDE * SIDE
    for _ in range(depth):
        layers += [nn.Linear(features, width), activation()]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, CLASSES))


def _residual_perceptron(width: int, depth: int) -> nn.Module:
    blocks = [Residual(nn.LayerNorm(width), nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(nn.Flatten(), nn.Linear(SIDE * SIDE, width), *blocks, nn.Linear(width, CLASSES))


def _images(channels: int, *blocks: nn.Module) -> nn.Module:
    stem = [nn.Conv2d(1, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return nn.Sequential(*stem, *blocks, nn.AvgPool2d(SIDE), nn.Flatten(), nn.Linear(channels, CLASSES))


def _residual_images(channels: int, depth: int) -> nn.Module:
    def block() -> nn.Module:
        convolution = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        return Residual(convolution, nn.BatchNorm2d(channels), nn.ReLU())

    return _images(channels, *(block() for _ in range(depth)))


def _depthwise(channels: int, depth: int) -> nn.Module:
    blocks: list[nn.Module] = []
    for _ in range(depth):
        blocks += [nn.Conv2d(channels, channels, 3, padding=1, groups=channels, bias=False)]
        blocks += [nn.Conv2d(channels, channels, 1, bias=False), nn.BatchNorm2d(channels), nn.ReLU()]
    return _images(channels, *blocks)


def _gated(width: int, depth: int, gate: Callable[[torch.Tensor], torch.Tensor]) -> nn.Module:
    sizes = [SIDE * SIDE, *([width] * depth)]
    layers = [Gated(features, width, gate) for features in sizes[:-1]]
    return nn.Sequential(nn.Flatten(), *layers, nn.Linear(width, CLASSES))


KINDS: dict[str, Callable[[], nn.Module]] = {
    "perceptron 128": lambda: _perceptron(128, 2, nn.ReLU),
    "perceptron 192": lambda: _perceptron(192, 3, nn.GELU),
    "perceptron 256": lambda: _perceptron(256, 2, nn.Tanh),
    "perceptron 512": lambda: _perceptron(512, 2, nn.ReLU),
    "residual perceptron 128": lambda: _residual_perceptron(128, 2),
    "residual perceptron 256": lambda: _residual_perceptron(256, 3),
    "residual images 16": lambda: _residual_images(16, 2),
    "residual images 32": lambda: _residual_images(32, 2),
    "attention 32": lambda: Attending(32, 2, 1),
    "attention 48": lambda: Attending(48, 3, 2),
    "attention 64": lambda: Attending(64, 4, 1),
    "LSTM 48": lambda: Recurrent(nn.LSTM, 48),
    "GRU 64": lambda: Recurrent(nn.GRU, 64),
    "RNN 96": lambda: Recurrent(nn.RNN, 96),
    "depthwise 16": lambda: _depthwise(16, 2),
    "depthwise 24": lambda: _depthwise(24, 3),
    "depthwise 32": lambda: _depthwise(32, 2),
    "gated 128": lambda: _gated(128, 2, torch.sigmoid),
    "gated 192": lambda: _gated(192, 2, F.silu),
    "gated 256": lambda: _gated(256, 1, torch.tanh),
}


def build(pick: Any) -> nn.Module:
    """Return a model of the picked kind."""
    return KINDS[pick("kind", list(KINDS))]()
