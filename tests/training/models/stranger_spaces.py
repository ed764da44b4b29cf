"""Spaces as strangers bring them: models with habits that no trace of operations shows."""

import copy
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from nasflow.space.pick import Pick


class _Net(nn.Module):
    """Two layers, and what happens to the hidden values between them."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.last = nn.Linear(6, width), nn.Linear(width, 3)
        self.made()

    def made(self) -> None:
        """Add more."""

    def between(self, hidden: Tensor) -> Tensor:
        """Of the hidden values."""
        return hidden

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(torch.tanh(self.between(self.first(x))))
        return out


class NumpyRouted(_Net):
    """A generator of NumPy's own decides the way."""

    def made(self) -> None:
        self.rng = np.random.default_rng(0)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * 2 if self.rng.random() < 0.5 else hidden


class PythonRouted(NumpyRouted):
    """One of Python's does."""

    def made(self) -> None:
        self.rng = random.Random(1)  # type: ignore[assignment]


class TorchRouted(_Net):
    """One of torch's does."""

    def made(self) -> None:
        self.rng = torch.Generator().manual_seed(1)

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * 2 if torch.rand((), generator=self.rng).item() < 0.5 else hidden


class _Meter:
    def __init__(self) -> None:
        self.calls = 0

    def tick(self) -> int:
        """Count a call."""
        self.calls += 1
        return self.calls


class WarmedUp(_Net):
    """A helper object counts the calls."""

    def made(self) -> None:
        self.meter = _Meter()

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * min(1.0, self.meter.tick() / 10)


class CountedByHook(_Net):
    """A hook does, in the model that owns the layer."""

    def made(self) -> None:
        self.calls = 0
        self.first.register_forward_hook(self.grown)

    def grown(self, layer: nn.Module, inputs: Any, output: Tensor) -> Tensor:
        """The more, the later."""
        self.calls += 1
        return output * (1 + 0.1 * self.calls)


class AsksForGradients(_Net):
    """It scales what it trains on."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * 1.7 if torch.is_grad_enabled() else hidden


class MeanTeacher(_Net):
    """A frozen copy follows a layer; it begins as zeros in every trial."""

    def made(self) -> None:
        self.teacher = copy.deepcopy(self.first).requires_grad_(False)
        for parameter in self.teacher.parameters():
            parameter.zero_()

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            with torch.no_grad():
                for new, old in zip(self.first.parameters(), self.teacher.parameters(), strict=True):
                    old.lerp_(new, 0.1)
        out: Tensor = self.last(torch.tanh(self.first(x) - self.teacher(x)))
        return out


class Centred(_Net):
    """The same by `.data`, which no version counter sees."""

    def made(self) -> None:
        self.centre = nn.Parameter(torch.zeros(self.first.out_features), requires_grad=False)

    def between(self, hidden: Tensor) -> Tensor:
        if self.training:
            self.centre.data.mul_(0.9).add_(hidden.detach().mean(0), alpha=0.1)
        return hidden - self.centre


class OwnStatistics(_Net):
    """A normalization in eval mode whose statistics the model itself moves."""

    def made(self) -> None:
        self.norm = nn.BatchNorm1d(self.first.out_features, affine=False).eval()

    def between(self, hidden: Tensor) -> Tensor:
        with torch.no_grad():
            self.norm.running_mean.lerp_(hidden.mean(0), 0.1)  # type: ignore[union-attr,operator]
        normed: Tensor = self.norm(hidden)
        return normed


class Frozen(_Net):
    """It freezes its first layer after some steps."""

    def made(self) -> None:
        self.steps = 0

    def between(self, hidden: Tensor) -> Tensor:
        self.steps += self.training
        if self.steps == 3:
            self.first.requires_grad_(False)
        return hidden


class Stateful(_Net):
    """It remembers the last batch."""

    def made(self) -> None:
        self.last_mean: Tensor | None = None

    def between(self, hidden: Tensor) -> Tensor:
        before = hidden.new_zeros(()) if self.last_mean is None else self.last_mean
        if self.training:
            self.last_mean = hidden.detach().mean(0)
        return hidden + before


class FrozenNorm(_Net):
    """`train` leaves its normalization in eval mode."""

    def made(self) -> None:
        self.norm, self.drop = nn.BatchNorm1d(self.first.out_features), nn.Dropout(0.3)
        self.train()

    def train(self, mode: bool = True) -> "FrozenNorm":
        super().train(mode)
        self.norm.eval()
        return self

    def between(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.drop(self.norm(hidden))
        return out


class Experts(_Net):
    """Values choose the expert, so some have no gradient in some batches."""

    def made(self) -> None:
        self.experts = nn.ModuleList(nn.Linear(self.first.out_features, self.first.out_features) for _ in range(5))

    def between(self, hidden: Tensor) -> Tensor:
        choice, out = hidden.argmax(1) % 5, torch.zeros_like(hidden)
        for number, expert in enumerate(self.experts):
            if (choice == number).any():
                out[choice == number] = expert(hidden[choice == number])
        return out


class Spectral(_Net):
    """A complex weight in the frequency domain."""

    def made(self) -> None:
        self.weight = nn.Parameter(torch.randn(self.first.out_features // 2 + 1, dtype=torch.cfloat))

    def between(self, hidden: Tensor) -> Tensor:
        return torch.fft.irfft(torch.fft.rfft(hidden) * self.weight, n=hidden.shape[-1])


class Reversed(_Net):
    """A backward of its own behind a helper function."""

    def between(self, hidden: Tensor) -> Tensor:
        return _reverse(hidden)


class _Reverse(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return -grads[0]


def _reverse(x: Tensor) -> Tensor:
    out: Tensor = _Reverse.apply(x)  # type: ignore[no-untyped-call]
    return out


class Called(_Net):
    """`__call__` does more than `forward`."""

    def __call__(self, x: Tensor) -> Tensor:
        out: Tensor = super().__call__(x * 2) * 3
        return out


class Rerun(_Net):
    """A part runs again for its backward, with the same draws."""

    def made(self) -> None:
        self.part = nn.Sequential(nn.Linear(self.first.out_features, self.first.out_features), nn.Dropout(0.3))

    def between(self, hidden: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.part, hidden, use_reentrant=False)
        return out


class Gumbel(_Net):
    """Noise in training."""

    def made(self) -> None:
        self.gate = nn.Parameter(torch.zeros(self.first.out_features, 2))

    def between(self, hidden: Tensor) -> Tensor:
        return hidden * F.gumbel_softmax(self.gate, hard=self.training)[:, 0]


class BySize(_Net):
    """A batch of one takes another way."""

    def made(self) -> None:
        self.other = nn.Linear(self.first.out_features, self.first.out_features)

    def between(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.other(hidden) if hidden.shape[0] == 1 else hidden
        return out


class Squeezed(_Net):
    """`squeeze` takes the batch away where it is one."""

    def between(self, hidden: Tensor) -> Tensor:
        return hidden.squeeze().view(-1, hidden.shape[-1])


class TiedByData(_Net):
    """Two parameters in one memory."""

    def made(self) -> None:
        width = self.first.out_features
        self.one, self.two = nn.Linear(width, width), nn.Linear(width, width)
        self.two.weight.data = self.one.weight.data

    def between(self, hidden: Tensor) -> Tensor:
        out: Tensor = self.two(torch.tanh(self.one(hidden)))
        return out


class Bag(nn.Module):
    """An embedding with sparse gradients."""

    def __init__(self, width: int):
        super().__init__()
        self.table, self.last = nn.EmbeddingBag(9, width, sparse=True), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.table((x.abs() * 4).long().clamp(max=8)))
        return out


class LookUp(nn.Module):
    """A function with a sparse gradient looks up rows of a parameter."""

    def __init__(self, width: int):
        super().__init__()
        self.table, self.last = nn.Parameter(torch.randn(9, width)), nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        rows = F.embedding((x.abs() * 4).long().clamp(max=8), self.table, sparse=True)
        out: Tensor = self.last(rows.mean(1))
        return out


class HiddenLookUp(LookUp):
    """The same where it can't be traced."""

    def forward(self, x: Tensor) -> Tensor:
        out = super().forward(x)
        return out * 2 if float(out.detach().sum()) > 1e9 else out


def _counted(width: int) -> nn.Module:
    calls = 0

    class Counted(_Net):
        def between(self, hidden: Tensor) -> Tensor:
            nonlocal calls
            calls += 1
            return hidden * (1 + 0.1 * calls)

    return Counted(width)


def _scripted(width: int) -> nn.Module:
    inner = torch.jit.script(nn.Sequential(nn.Linear(width, width), nn.LayerNorm(width), nn.Dropout(0.3)))
    return nn.Sequential(nn.Linear(6, width), inner, nn.Linear(width, 3))


def _normalized(width: int) -> nn.Module:
    first = parametrizations.spectral_norm(nn.Linear(6, width))
    return nn.Sequential(first, nn.Tanh(), parametrizations.orthogonal(nn.Linear(width, 3)))


MODELS: dict[str, Callable[[int], nn.Module]] = {
    kind.__name__: kind
    for kind in (
        *(NumpyRouted, PythonRouted, TorchRouted, WarmedUp, CountedByHook, AsksForGradients),
        *(MeanTeacher, Centred, OwnStatistics, Frozen, Stateful, FrozenNorm, Experts, Spectral, Reversed, Called),
        *(Rerun, Gumbel, BySize, Squeezed, TiedByData, Bag, LookUp, HiddenLookUp),
    )
} | {"closure": _counted, "scripted": _scripted, "parametrized": _normalized}


def stranger(pick: Pick) -> nn.Module:
    """One of the models."""
    return MODELS[pick("model", list(MODELS))](pick("width", [4, 6]))


def rows(target: str = "class") -> tuple[DataLoader[Any], DataLoader[Any]]:
    """Batches of eight, the last one of one. `target` is a parameter's name that nasflow uses, too."""
    x = torch.randn(25, 6, generator=torch.Generator().manual_seed(3))
    data = TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long() if target == "class" else x[:, :1])
    return DataLoader(data, batch_size=8, shuffle=True), DataLoader(data, batch_size=10)
