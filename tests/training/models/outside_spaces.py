"""Spaces whose models have layers in common that are made outside of `build(pick)`; some may, most may not."""

import functools
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from nasflow.merge.planning.logical_plan import LogicalPlan
from nasflow.space.pick import Pick
from tests.training.models.lightning_modules import Plain

BODY = nn.Linear(6, 6)
BODY_OF_A_MODEL = nn.Linear(6, 6)
SCALE = nn.Parameter(torch.ones(6))
TABLE = torch.eye(6)
ARRAY = np.eye(6, dtype=np.float32)
NORM = nn.BatchNorm1d(6).requires_grad_(False)
STATISTICS = torch.zeros(6)
FROZEN = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).requires_grad_(False).eval()
OFFSET = torch.ones(6)
TANH = nn.Tanh()
LOSS_SCALE = nn.Linear(1, 1)


class Scaled(nn.Module):
    """`[B, 6]` times a parameter."""

    def __init__(self, scale: nn.Parameter):
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Shifted(nn.Module):
    """`[B, 6]` plus a buffer that no one changes."""

    def __init__(self, offset: torch.Tensor):
        super().__init__()
        self.register_buffer("offset", offset)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.offset


class Counting(nn.Module):
    """Passes `[B, 6]` through and counts the batches."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("batches", torch.tensor(0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.batches += self.training
        return x


COUNTING = Counting()


class Looked(nn.Module):
    """The rows of a table that the signs of `[B, 6]` name, summed."""

    def __init__(self, freeze: bool):
        super().__init__()
        self.rows = nn.Embedding.from_pretrained(TABLE, freeze=freeze)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        summed: torch.Tensor = self.rows((x > 0).long()).sum(1)
        return summed


@functools.cache
def cached(width: int) -> nn.Linear:
    return nn.Linear(width, width)


def own(weight: torch.Tensor) -> nn.Linear:
    """A layer of one's own with such a weight."""
    layer = nn.Linear(6, 6)
    layer.weight = nn.Parameter(weight)
    return layer


def defaulted(layer: nn.Linear = nn.Linear(6, 6)) -> nn.Linear:  # noqa: B008  # as users write it
    return layer


def renormed() -> nn.Module:
    """A batch norm of one's own whose statistics are not."""
    norm = nn.BatchNorm1d(6)
    norm.running_mean = STATISTICS
    return norm


REFUSED: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: BODY,
    "cached": lambda: cached(6),
    "default": defaulted,
    "parameter": lambda: Scaled(SCALE),
    "view": lambda: own(TABLE[:, :].t()),
    "array": lambda: own(torch.from_numpy(ARRAY)),
    "table that trains": lambda: Looked(freeze=False),
    "frozen norm in train mode": lambda: NORM,
    "statistics": renormed,
    "layer with a buffer": lambda: COUNTING,
}
FINE: dict[str, Callable[[], nn.Module]] = {
    "own": lambda: nn.Linear(6, 6),
    "frozen": lambda: FROZEN,
    "frozen table": lambda: Looked(freeze=True),
    "constant": lambda: Shifted(OFFSET),
    "stateless": lambda: TANH,
}


def outside(pick: Pick, kinds: Sequence[str] = (*REFUSED, *FINE)) -> nn.Module:
    """One of these layers, and a head of its own."""
    made = {**REFUSED, **FINE}[pick("kind", list(kinds))]()
    width = pick("width", [4, 8])
    return nn.Sequential(made, nn.Linear(6, width), nn.ReLU(), nn.Linear(width, 3))


def whole(pick: Pick) -> nn.Module:
    """A model that is made outside altogether."""
    pick("width", [4, 8])
    return BODY_OF_A_MODEL


class WithLoss(Plain):
    """Has a layer that all modules of this class have in common."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.loss_scale = LOSS_SCALE


class Unfreezing(Plain):
    """Trains the trunk from its second epoch on, its batch norm included."""

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.model[0].requires_grad_(True).train()  # type: ignore[index]


def note_shared(plan: LogicalPlan) -> None:
    """A merge pass that writes the layers that are computed once for several members into a file, a plan a line."""
    layers = [type(o.node.module).__name__ for o in plan.operations if o.is_shared and o.node.module is not None]
    with Path(os.environ["SHARED_LAYERS"]).open("a") as file:
        file.write(f"{len(plan.graphs)}: {' '.join(layers)}\n")


def trunk(pick: Pick) -> Any:
    """A frozen trunk that every member makes anew, and a head of its own."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        frozen = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh()).requires_grad_(False).eval()
    width = pick("width", [4, 8])
    return nn.Sequential(frozen, nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 3))
