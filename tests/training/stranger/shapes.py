"""Models of strangers whose outputs a ready-made evaluator can or can't score, beside sound ones."""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick
from tests.training.models.spaces import rows


@dataclass
class Found:
    logits: torch.Tensor
    hidden: torch.Tensor


class ModelOutput(OrderedDict[str, Any]):
    """As those of transformers, which are dicts."""


FORMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "logits": lambda y: y,
    "two": lambda y: y[:, :2],
    "one": lambda y: y[:, :1],
    "flat": lambda y: y[:, 0],
    "image": lambda y: y[:, :, None, None].expand(-1, -1, 2, 2),
    "twice": lambda y: torch.cat([y, y]),
    "tuple": lambda y: (y, y.mean()),
    "list": lambda y: [y, y],
    "dict": lambda y: {"logits": y, "loss": y.sum()},
    "dataclass": lambda y: Found(y, y),
    "model output": lambda y: ModelOutput(logits=y, hidden_states=y),
    "nothing": lambda y: None,
}
"""What a model makes of numbers `[B, 3]`."""


class Gives(nn.Module):
    def __init__(self, width: int, form: str):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, width), nn.Tanh(), nn.Linear(width, 3))
        self.form = form

    def forward(self, x: torch.Tensor) -> Any:
        return FORMS[self.form](self.body(x))


class Helped(Gives):
    """Gives what helps in training beside its logits, as GoogLeNet does."""

    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(x)
        return (y, 0.5 * y) if self.training else y


def helped(pick: Pick) -> nn.Module:
    return Helped(pick("width", [4, 5]), "logits")


def loss_of_both(output: Any, target: torch.Tensor) -> torch.Tensor:
    outputs = output if isinstance(output, tuple) else (output,)
    return torch.stack([nn.functional.cross_entropy(each, target) for each in outputs]).sum()


def shaped(pick: Pick) -> nn.Module:
    return Gives(pick("width", [4, 5, 6, 7]), pick("form", list(FORMS)))


def unsized(pick: Pick) -> nn.Module:
    return nn.Sequential(nn.LazyLinear(pick("width", [4, 5])), nn.LazyLinear(3))


class OfArrays(Gives):
    """Takes arrays of NumPy."""

    def forward(self, x: Any) -> Any:
        return super().forward(torch.as_tensor(x))


def of_arrays(pick: Pick) -> nn.Module:
    return OfArrays(pick("width", [4, 5]), "logits")


class Placing(Gives):
    """Gives logits for each of four places in training, and for all in validation."""

    def forward(self, x: torch.Tensor) -> Any:
        y = super().forward(x)
        return y[:, :, None].expand(-1, -1, 4) if self.training else y


def placing(pick: Pick) -> nn.Module:
    return Placing(pick("width", [4, 5]), "logits")


class Normed(nn.Module):
    """Batch norm, which a batch of one sample fails, or none."""

    def __init__(self, width: int, norm: bool):
        super().__init__()
        self.body = nn.Sequential(
            nn.Linear(6, width), nn.BatchNorm1d(width) if norm else nn.Tanh(), nn.Linear(width, 3)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        return out


def normed(pick: Pick) -> nn.Module:
    return Normed(pick("width", [4, 5]), pick("norm", [True, False]))


# --- data --------------------------------------------------------------------------------------------------------


def numbers() -> Any:
    x, _ = rows()
    target = x.sum(1)
    return TensorLoader((x[:64], target[:64]), 16, shuffle=True), TensorLoader((x[64:], target[64:]), 16)


def dense() -> Any:
    """Shares of classes for each of two by two places."""
    x, y = rows()
    y = nn.functional.one_hot(y, 3)[:, :, None, None].expand(-1, -1, 2, 2).to(x.dtype)
    return TensorLoader((x[:64], y[:64]), 16, shuffle=True), TensorLoader((x[64:], y[64:]), 16)


def last_of_one() -> Any:
    x, y = rows()
    return TensorLoader((x[:65], y[:65]), 16), TensorLoader((x[65:], y[65:]), 16)


def placed(soft: bool) -> Any:
    """Classes, or shares of them, for each of four places in training, and one for all in validation."""
    x, y = rows()
    y4 = nn.functional.one_hot(y, 3).to(x.dtype)[:, :, None].expand(-1, -1, 4) if soft else y[:, None].expand(-1, 4)
    return TensorLoader((x[:64], y4[:64]), 16, shuffle=True), TensorLoader((x[64:], y[64:]), 16)


def arrays() -> Any:
    x, y = rows()
    return [(x[:16].numpy(), y[:16]), (x[16:32].numpy(), y[16:32])], [(x[64:].numpy(), y[64:])]
