"""Train one of the members in plain PyTorch, as users do. Imports nothing of nasflow except its loader's file.

The loop does less than nasflow, which favours it: nasflow also logs the training loss, checks that losses and weights
are finite, and keeps each member's random numbers separate.
"""

import importlib
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Batches = Iterable[Any]
Step = Callable[[torch.Tensor, torch.Tensor], None]


@dataclass(frozen=True)
class Trial:
    """One member as a script sees it; plain JSON.

    Attributes:
        space: `module:build`.
        epoch_seeds: of the order of the batches and of augmentation, one for each epoch to train.
    """

    space: str
    params: dict[str, Any]
    architecture: dict[str, Any]
    lr: float
    seed: int
    epoch_seeds: list[int]


@dataclass(frozen=True)
class Manner:
    """Options of the loop.

    Attributes:
        tuned: a fused optimizer, and channels_last for images.
        device: the model's device; batches are moved to it if necessary.
        bf16: train in bfloat16 autocast.
    """

    tuned: bool = False
    device: str = "cpu"
    bf16: bool = False

    def autocast(self) -> torch.autocast:
        """Return the context of a forward pass."""
        return torch.autocast(self.device, torch.bfloat16, enabled=self.bf16)

    def place(self, x: torch.Tensor) -> torch.Tensor:
        """Return inputs `[B, ...]` on the model's device and in its memory format."""
        x = x.to(self.device)
        return x.contiguous(memory_format=torch.channels_last) if self.tuned and x.ndim == 4 else x


class Answers:
    """The `pick` of a given architecture: returns each label's value, or what a factory returns for it."""

    def __init__(self, architecture: Mapping[str, Any]):
        self._architecture = architecture

    def __call__(self, label: str, options: Any) -> Any:
        value = self._architecture[label]
        return options[value]() if isinstance(options, Mapping) else value


def build(trial: Trial, manner: Manner) -> nn.Module:
    """Build the model with the initial weights that nasflow draws for the same seed."""
    module, _, name = trial.space.partition(":")
    torch.manual_seed(trial.seed)
    model: nn.Module = getattr(importlib.import_module(module), name)(Answers(trial.architecture), **trial.params)
    model.to(manner.device)
    return model.to(memory_format=torch.channels_last) if manner.tuned else model  # type: ignore[call-overload]


def adam(model: nn.Module, trial: Trial, manner: Manner, **options: Any) -> torch.optim.Adam:
    """Return Adam over the trainable parameters."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.Adam(parameters, lr=trial.lr, fused=manner.tuned or None, **options)


def seed_epoch(seed: int) -> None:
    """Seed the generators so that loaders draw the same as nasflow's in this epoch."""
    torch.manual_seed(seed)
    random.seed(seed)


def make_step(model: nn.Module, optimizer: torch.optim.Optimizer, manner: Manner) -> Step:
    """Return a function that trains one step on a batch that `Manner.place` has prepared."""

    def step(x: torch.Tensor, target: torch.Tensor) -> None:
        optimizer.zero_grad()
        with manner.autocast():
            loss = F.cross_entropy(model(x), target)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def train(trial: Trial, batches: Batches, validation: Batches, manner: Manner) -> float:
    """Train and validate every epoch. Return the last validation accuracy."""
    model = build(trial, manner)
    step = make_step(model, adam(model, trial, manner), manner)
    return run_epochs(model, step, trial, batches, validation, manner=manner)


def run_epochs(
    model: nn.Module,
    step: Step,
    trial: Trial,
    batches: Batches,
    validation: Batches,
    *,
    manner: Manner,
) -> float:
    """Call `step` with every batch and validate, epoch after epoch. Return the last validation accuracy."""
    accuracy = 0.0
    for seed in trial.epoch_seeds:
        model.train()
        seed_epoch(seed)
        for x, target in batches:
            step(manner.place(x), target.to(manner.device))
        _, accuracy = validate(model, validation, manner)
    return accuracy


@torch.inference_mode()
def validate(model: nn.Module, batches: Batches, manner: Manner) -> tuple[float, float]:
    """Return mean loss and accuracy."""
    model.eval()
    loss = torch.zeros((), device=manner.device)
    right = torch.zeros((), device=manner.device)
    count = 0
    for x, target in batches:
        own = target.to(manner.device)
        with manner.autocast():
            output = model(manner.place(x))
        loss += F.cross_entropy(output.float(), own, reduction="sum")
        right += (output.argmax(1) == own).sum()
        count += len(own)
    return float(loss) / count, float(right) / count
