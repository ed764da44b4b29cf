"""Models of every kind that runs merged, by the batches that they read. Members of a kind merge well."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import nn

from tests.training.models.reused_spaces import HiddenUse

BATCH = 17  # odd, and over 512 pixels of 6 x 6
CLASSES = 3
ACTIVATIONS: tuple[Callable[[], nn.Module], ...] = (nn.ReLU, nn.GELU, nn.Tanh, nn.Sigmoid, nn.SiLU)


@dataclass(frozen=True)
class Kind:
    """Models that read the same input.

    Attributes:
        x: a batch of it.
        makes: functions that return the models.
    """

    x: torch.Tensor
    makes: Sequence[Callable[[], nn.Module]]


class Twice(nn.Module):
    """A layer that is called twice, with its input added."""

    def __init__(self, layer: nn.Module):
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layer(torch.tanh(self.layer(x)))


class Gated(nn.Module):
    """Two activations that read one value, which is also read directly."""

    def __init__(self, width: int, one: nn.Module, other: nn.Module):
        super().__init__()
        self.layer, self.one, self.other = nn.Linear(width, width), one, other

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        return y + self.one(y) * self.other(y)


class Branches(nn.Module):
    """One value read by several layers, and by a second one of them only in part."""

    def __init__(self, *branches: nn.Module):
        super().__init__()
        self.branches = nn.ModuleList(branches)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cat([x, *(branch(x) for branch in self.branches)], 1)


class Block(nn.Module):
    """A residual block."""

    def __init__(self, *body: nn.Module):
        super().__init__()
        self.body = nn.Sequential(*body)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.body(x) + x)


class Pooled(nn.Module):
    """The mean over rows and columns."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.mean((2, 3))


class Words(nn.Module):
    """A tied embedding with padding, and self-attention."""

    def __init__(self, width: int, tied: bool):
        super().__init__()
        self.table = nn.Embedding(9, width, padding_idx=2)
        self.norm, self.out = nn.LayerNorm(width), nn.Linear(width, 9, bias=False)
        self.attention = nn.MultiheadAttention(width, 2, batch_first=True)
        if tied:
            self.out.weight = self.table.weight
        self.head = nn.Linear(9, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.table(x)
        y = self.norm(y + self.attention(y, y, y, need_weights=False)[0])
        return self.head(torch.tanh(self.out(y).mean(1)))


class Sequences(nn.Module):
    """Layers without a kernel of their own."""

    def __init__(self, width: int):
        super().__init__()
        self.up, self.slope = nn.Linear(4, width), nn.PReLU()
        self.mix, self.head = nn.Conv1d(5, 5, 3, padding=1), nn.Linear(width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.mix(self.slope(self.up(x))).mean(1))


def _mlp(width: int, *body: nn.Module, activation: Callable[[], nn.Module] = nn.ReLU, bias: bool = True) -> nn.Module:
    return nn.Sequential(nn.Linear(8, width, bias=bias), activation(), *body, nn.Linear(width, CLASSES))


def _deep(width: int, activation: Callable[[], nn.Module], other: Callable[[], nn.Module]) -> nn.Module:
    return _mlp(width, nn.Linear(width, 6), other(), nn.Linear(6, width), activation=activation)


def _normed(width: int, norm: Callable[[int], nn.Module], p: float) -> nn.Module:
    return _mlp(width, nn.Linear(width, width, bias=False), norm(width), nn.Tanh(), nn.Dropout(p))


def _in_eval(norm: nn.Module) -> nn.Module:
    with torch.no_grad():
        for statistics in norm.buffers():
            statistics.add_(1)
    return norm.eval()


def _hidden(width: int) -> nn.Module:
    layer = nn.Linear(width, width)
    return _mlp(width, layer, nn.Tanh(), HiddenUse(layer))


def _cell(width: int, *body: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, width, 3, padding=1), nn.ReLU(), *body, Pooled(), nn.Linear(width, CLASSES))


def _residual(width: int, activation: Callable[[], nn.Module], kernel: int, groups: int) -> nn.Module:
    conv = nn.Conv2d(width, width, kernel, padding=kernel // 2, groups=groups, bias=False)  # it would do nothing
    own = nn.Conv2d(width, width, 1, bias=False)
    return _cell(width, Block(conv, nn.BatchNorm2d(width, momentum=0.3), activation(), own), nn.MaxPool2d(2))


def _route(*operations: str) -> nn.Module:
    made = {
        "3x3": lambda: nn.Sequential(nn.Conv2d(4, 4, 3, padding=1, bias=False), nn.BatchNorm2d(4)),
        "1x1": lambda: nn.Conv2d(4, 4, 1),
        "pool": lambda: nn.MaxPool2d(3, 1, 1),
        "skip": nn.Identity,
    }
    return _cell(4, *(layer for name in operations for layer in (made[name](), nn.ReLU())))


def _flat(width: int, pool: nn.Module) -> nn.Module:
    first = nn.Conv2d(2, width, 1)
    return nn.Sequential(first, nn.Tanh(), pool, nn.Flatten(), nn.Linear(width * 9, CLASSES))


def kinds() -> dict[str, Kind]:
    """Return the kinds by name, in float64."""
    generator = torch.Generator().manual_seed(1)
    rows, images, sequences = (
        torch.randn(BATCH, *shape, generator=generator, dtype=torch.float64) for shape in ((8,), (2, 6, 6), (5, 4))
    )
    words = torch.randint(9, (BATCH, 5), generator=generator)
    some: dict[str, Sequence[Callable[[], nn.Module]]] = {
        "activations": [_bound(_mlp, w, activation=a) for w, a in product((5, 7), ACTIVATIONS)]
        + [_bound(_mlp, 5, bias=False), _bound(_mlp, 7, activation=nn.ELU)],
        "depths": [_bound(_deep, w, a, b) for w, a, b in product((5, 6), (nn.ReLU, nn.GELU), (nn.Tanh, nn.SiLU))]
        + [_bound(_mlp, 6), _bound(_mlp, 6, activation=nn.GELU)],
        "gated": [lambda a=a, b=b: _mlp(5, Gated(5, a(), b())) for a, b in product(ACTIVATIONS[:3], ACTIVATIONS[2:])]
        + [lambda: _mlp(5, nn.Linear(5, 5))] * 2,
        "gated alike": [lambda: _mlp(5, Gated(5, nn.Tanh(), nn.Sigmoid()))] * 3,
        "norms": [
            _bound(_mlp, 6),  # draws nothing
            *(_bound(_normed, 6, nn.LayerNorm, p) for p in (0.0, 0.2, 0.5)),
            *(lambda p=p: _normed(6, lambda width: nn.BatchNorm1d(width, momentum=0.3), p) for p in (0.0, 0.3, 0.3)),
            *[lambda: _normed(6, lambda width: nn.GroupNorm(2, width), 0.0)] * 2,
            *[lambda: _normed(6, lambda width: _in_eval(nn.BatchNorm1d(width)), 0.5)] * 2,
        ],
        "reused": [lambda w=w: _mlp(w, Twice(nn.Linear(w, w))) for w in (5, 5, 6, 6)]
        + [
            lambda w=w: nn.Sequential(_mlp(w), Branches(nn.Linear(3, 4), nn.Linear(3, 2)), nn.Linear(9, 3))
            for w in (5, 6)
        ],
    }
    found = {name: Kind(rows, makes) for name, makes in some.items()}
    found["hidden"] = Kind(rows, [_bound(_hidden, 5)] * 3)
    found["cells"] = Kind(
        images,
        [_bound(_residual, 4, a, k, g) for a, k, g in product((nn.ReLU, nn.SiLU, nn.GELU), (1, 3), (1, 4))]
        + [lambda: _cell(4, _in_eval(nn.BatchNorm2d(4)), nn.ReLU())] * 2
        + [lambda: _cell(4, Twice(nn.Conv2d(4, 4, 1)))] * 2,
    )
    routes = ("1x1 3x3 skip", "3x3 pool 1x1", "pool skip 3x3", "3x3 pool skip", "skip 3x3 skip", "pool 1x1 3x3")
    found["routes"] = Kind(images, [_bound(_route, *route.split()) for route in routes])
    others = (nn.ELU, nn.ELU, nn.ReLU, nn.Hardswish, nn.Hardswish, nn.Hardswish)
    found["other activations"] = Kind(images, [lambda a=a: _cell(4, nn.Conv2d(4, 4, 3), a()) for a in others])
    pools = [nn.MaxPool2d(2), nn.MaxPool2d(2), nn.AvgPool2d(2), nn.AvgPool2d(3, 2, 1, count_include_pad=False)]
    found["pools"] = Kind(images, [_bound(_flat, 4, pool) for pool in (*pools, nn.AvgPool2d(3, 2, 1))])
    found["pools"] = Kind(images, [*found["pools"].makes, *found["pools"].makes])
    found["hidden between"] = Kind(rows, [*found["hidden"].makes, _bound(_mlp, 5, nn.Tanh()), *found["hidden"].makes])
    found["words"] = Kind(words, [_bound(Words, w, tied) for w, tied in product((4, 6, 4), (True, False))])
    found["sequences"] = Kind(sequences, [_bound(Sequences, w) for w in (4, 4, 6)])
    return found


def _bound(make: Callable[..., nn.Module], *args: Any, **options: Any) -> Callable[[], nn.Module]:
    return lambda: make(*args, **options)
