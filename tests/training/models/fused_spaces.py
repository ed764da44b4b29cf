"""Spaces whose members mix well."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.job import activity
from nasflow.space.pick import Pick
from tests.training.models.spaces import Fault, rows

ACTIVATIONS = {"relu": nn.ReLU, "gelu": nn.GELU, "tanh": nn.Tanh, "inplace": lambda: nn.ReLU(inplace=True)}
NORMS = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm, "none": lambda width: nn.Identity()}


def mixed(pick: Pick, features: int = 6, outputs: int = 3) -> nn.Module:
    """Rows: widths, depths, norms, activations and dropout differ."""
    layers: list[nn.Module] = []
    for index in range(pick("depth", [1, 2])):
        width, norm = pick(f"width{index}", [4, 8]), pick("norm", list(NORMS))
        # before a batch norm a bias does nothing, and its gradient is nothing but rounding
        layers += [nn.Linear(features, width, bias=norm != "batch"), NORMS[norm](width)]
        layers += [ACTIVATIONS[pick("activation", list(ACTIVATIONS))](), nn.Dropout(pick("dropout", [0.0, 0.2]))]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, outputs))


def valued(pick: Pick) -> nn.Module:
    """`mixed` for one number."""
    return mixed(pick, outputs=1)


class Twice(nn.Module):
    """Calls one layer of dropout twice, and another one in place."""

    def __init__(self, width: int, dropout: float):
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 1)
        self.dropout, self.in_place = nn.Dropout(dropout), nn.Dropout(dropout / 2, inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        return self.last(self.in_place(self.dropout(torch.relu(y)) - self.dropout(torch.tanh(y))))


def dropped(pick: Pick) -> nn.Module:
    """One number."""
    return Twice(pick("width0", [4, 8]), pick("dropout", [0.0, 0.2, 0.7]))


class ByFunction(nn.Module):
    """Dropout without a layer."""

    def __init__(self, dropout: float):
        super().__init__()
        self.rate = dropout

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(x, self.rate, self.training)


def dropped_by_function(pick: Pick) -> nn.Module:
    """One number."""
    return nn.Sequential(nn.Linear(6, 4), ByFunction(pick("dropout", [0.0, 0.2])), nn.Linear(4, 1))


class Block(nn.Module):
    """A residual block with dropout on images between its convolutions, as in wide residual nets."""

    def __init__(self, width: int, kernel: int, dropout: float):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, kernel, padding=kernel // 2, bias=False)
        self.conv2 = nn.Conv2d(width, width, kernel, padding=kernel // 2, bias=False)
        self.norm, self.dropout = nn.BatchNorm2d(width), nn.Dropout(dropout)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.conv2(self.dropout(torch.relu(self.norm(self.conv1(x)))))
        y += x
        return torch.relu(y)


class Viewing(nn.Module):
    """Asks for its input as rows, as much code does; that fails on images channels last."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.view(x.size(0), -1)


def images(pick: Pick) -> nn.Module:
    """Images `[B, 1, 6, 6]`."""
    width = pick("width", [2, 4])
    layers: list[nn.Module] = [nn.Conv2d(1, width, 3, padding=1)]
    for index in range(pick("depth", [1, 2])):
        layers.append(Block(width, pick(f"kernel{index}", [1, 3]), pick("dropout", [0.0, 0.3])))
    return nn.Sequential(*layers, nn.MaxPool2d(2), Viewing(), nn.Linear(9 * width, 3))


def dropped_images(pick: Pick) -> nn.Module:
    """One number for images, with dropout between convolutions."""
    width, dropout = pick("width0", [4, 8]), pick("dropout", [0.0, 0.2, 0.7])
    layers = [nn.Conv2d(1, width, 3, padding=1), Block(width, 3, dropout), nn.Flatten(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear(36 * width, 1))


class Counting(nn.Module):
    """Scales by how often it was called: a trace can't know that."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += self.training
        return x * (1 + 0.1 * self.calls)


def counting(pick: Pick) -> nn.Module:
    """`mixed` with a part that stays opaque."""
    return nn.Sequential(Counting(), mixed(pick))


def ragged(pick: Pick) -> nn.Module:
    """Members whose outputs differ in shape: more classes than there are do no harm."""
    return mixed(pick, outputs=pick("outputs", [3, 4]))


def failing(pick: Pick) -> nn.Module:
    """`mixed` that does something bad after a number of steps."""
    fault = Fault(pick("fault", ["none", "raise", "exit", "nan", "memory"]), pick("after", [1, 2, 6]), training=True)
    return nn.Sequential(fault, mixed(pick))


class Watched(nn.Module):
    """Writes, each time it is called, which trial is recorded as running. Its operations can't be traced."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._write()
        return x * 2 if x.sum() > 0 else x

    def state_dict(self, *args: Any, **params: Any) -> Any:
        self._write()
        return super().state_dict(*args, **params)

    def _write(self) -> None:
        file = Path(os.environ["WATCHED"])
        doing = activity.read(file)
        with file.with_suffix(".calls").open("a") as calls:
            calls.write(f"{doing and doing.trial}\n")


def watched(pick: Pick) -> nn.Module:
    """`mixed` before a layer that notices for which trial it is called."""
    return nn.Sequential(mixed(pick), Watched())


class Unprintable(Exception):
    """Has no text."""

    def __str__(self) -> str:
        raise ValueError("no text")


class Raises(nn.Module):
    """Raises an error without a text at its third step."""

    def __init__(self, is_bad: bool):
        super().__init__()
        self.is_bad, self.steps = is_bad, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        if self.is_bad and self.steps > 2:
            raise Unprintable
        return x


def unprintable(pick: Pick) -> nn.Module:
    """`mixed` that raises an error without a text, or is sound."""
    return nn.Sequential(Raises(pick("bad", [False, True])), mixed(pick))


class Broken(nn.Module):
    """Gives NaN after so many steps by layers that are traced: its weights overflow."""

    def __init__(self, factor: float):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.exp(self.scale * self.factor - self.factor)


def overflowing(pick: Pick) -> nn.Module:
    """`mixed` whose loss is not finite soon, or that is sound."""
    return nn.Sequential(Broken(pick("factor", [1.0, 1e4])), mixed(pick))


def frozen_trunk(pick: Pick) -> nn.Module:
    """A trunk of fixed weights, one of two, and a trained head."""
    state = torch.random.get_rng_state()
    torch.manual_seed(pick("trunk", [1, 2]))
    trunk = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.BatchNorm1d(8)).requires_grad_(False).eval()
    torch.random.set_rng_state(state)
    return nn.Sequential(trunk, mixed(pick, features=8))


def numbers(batch_size: int = 24) -> tuple[TensorLoader, TensorLoader]:
    """Rows and a number each; the last batch of 64 is smaller."""
    x, y = rows()
    target = x.sum(1) + y
    return TensorLoader((x[:64], target[:64]), batch_size, shuffle=True), TensorLoader((x[64:], target[64:]), 12)


def images_to_numbers(batch_size: int = 24) -> tuple[TensorLoader, TensorLoader]:
    """Images and three numbers each; the last batch of 64 is smaller."""
    x, _ = rows(features=36)
    x, target = x.reshape(-1, 1, 6, 6), x[:, :3] + x[:, 3:6]
    return TensorLoader((x[:64], target[:64]), batch_size, shuffle=True), TensorLoader((x[64:], target[64:]), 12)


def ones(batch_size: int = 21) -> tuple[TensorLoader, TensorLoader]:
    """The blobs with a last training batch of one."""
    x, y = rows()
    return TensorLoader((x[:64], y[:64]), batch_size, shuffle=True), TensorLoader((x[64:], y[64:]), 26)


class Unsized:
    """A loader that does not know its length."""

    def __init__(self, loader: TensorLoader):
        self._loader = loader

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        return iter(self._loader)


def unsized() -> tuple[Unsized, TensorLoader]:
    """The blobs by a loader without a length."""
    x, y = rows()
    return Unsized(TensorLoader((x[:64], y[:64]), 24, shuffle=True)), TensorLoader((x[64:], y[64:]), 26)


def four_classes() -> tuple[TensorLoader, TensorLoader]:
    """The blobs with a class more than the models know."""
    x, y = rows(classes=4)
    return TensorLoader((x[:64], y[:64]), 24, shuffle=True), TensorLoader((x[64:], y[64:]), 26)


def one_number() -> tuple[TensorLoader, TensorLoader]:
    """`numbers` with one validation sample."""
    x, y = rows()
    target = x.sum(1) + y
    return TensorLoader((x[:64], target[:64]), 24, shuffle=True), TensorLoader((x[64:65], target[64:65]), 26)
