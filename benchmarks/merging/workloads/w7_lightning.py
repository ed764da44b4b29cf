"""W7: W1a's MLPs, or W2's cells, in a LightningModule of a user: fused, one by one, and with the ready-made evaluator.

The seconds are those of training and validation steps, of all epochs but the first, in which units are formed.
"""

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy

from benchmarks.merging.contestants import run_job
from benchmarks.merging.group import NEVER
from benchmarks.merging.workloads import w1_mlps, w2_cells
from nasflow.config.search import LightningConfig, MergeConfig, Target
from nasflow.config.values import FloatRange
from nasflow.job.events import Epoch, Evicted
from nasflow.job.spec import JobSpec

READY, FUSED, APART = "ready-made evaluator", "LightningModule, fused", "LightningModule, one by one"


class Classifier(LightningModule):
    """What users write."""

    def __init__(self, model: nn.Module, lr: float = 1e-3):
        super().__init__()
        self.model, self.lr = model, lr
        self.val_accuracy = MulticlassAccuracy(10, average="micro")

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        """Return the loss."""
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Log loss and accuracy."""
        x, y = batch
        out = self.model(x)
        self.log("val_loss", F.cross_entropy(out, y))
        self.val_accuracy(out, y)
        self.log("val_accuracy", self.val_accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.parameters(), lr=self.lr)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command line."""
    parser.add_argument("--members", type=int, default=32, help="trials that are trained")
    parser.add_argument("--epochs", type=int, default=10, help="of each trial, at least two")
    parser.add_argument("--cells", type=int, metavar="CHANNELS", help="W2's cells of so many channels in place of MLPs")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each, one warm-up apart")
    parser.add_argument("--seed", type=int, default=0, help="of the drawing of the trials")


def run(arguments: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """Measure and show the results."""
    specs = jobs(arguments.members, arguments.epochs, arguments.seed, arguments.cells)
    seconds: dict[str, list[float]] = {name: [] for name in specs}
    for _ in range(1 + arguments.repeats):
        for name, spec in specs.items():
            seconds[name].append(step_seconds(spec, folder))
    medians = {name: statistics.median(values[1:]) for name, values in seconds.items()}
    ratios = {
        "fused over one by one": _ratio(seconds[APART], seconds[FUSED]),
        "share of the ready-made evaluator's speed": _ratio(seconds[READY], seconds[FUSED]),
    }
    kind = f"cell networks of {arguments.cells} channels" if arguments.cells else "MLPs"
    table = Table("", "seconds of steps", title=f"W7: {arguments.members} {kind}, {arguments.epochs} epochs of digits")
    for name, value in medians.items():
        table.add_row(name, f"{value:.3f}")
    for name, value in ratios.items():
        table.add_row(name, f"{value:.2f}")
    Console().print(table)
    return [{"seconds": medians, "ratios": ratios}]


def jobs(members: int, epochs: int, seed: int, channels: int | None = None) -> dict[str, JobSpec]:
    """Return a job for each contestant, of the same models from the same weights, with the same batches and rates.

    Args:
        channels: of W2's cells; without it, W1a's MLPs are trained.
    """
    if channels is None:
        group = w1_mlps.make_group("a", members, epochs, seed)
    else:
        group = w2_cells.make_group(channels, members, epochs, seed)
    ready = group.job("job", NEVER)
    config = LightningConfig(
        module=Target(
            target="benchmarks.merging.workloads.w7_lightning:Classifier",
            params={"lr": FloatRange(float=(1e-3, 1e-2), log=True)},
        ),
        data=group.evaluator.data,
        epochs=epochs,
    )
    renamed = []
    for member in ready.members:
        architecture = dict(member.architecture)
        architecture["module.params.lr"] = architecture.pop("optimizer.lr")
        renamed.append(member.model_copy(update={"architecture": architecture}))
    fused = ready.model_copy(update={"evaluator": config, "data": config.data, "members": renamed})
    return {READY: ready, FUSED: fused, APART: fused.model_copy(update={"merge": MergeConfig(fuse="never")})}


def step_seconds(spec: JobSpec, folder: Path) -> float:
    """Return the seconds of the steps of a job in all epochs but the first. Raises RuntimeError if a member fails."""
    with tempfile.TemporaryDirectory(dir=folder) as root:
        events = run_job(spec, Path(root))
    if failed := [event for event in events if isinstance(event, Evicted)]:
        raise RuntimeError(f"trial {failed[0].trial} failed: {failed[0].error}")
    return sum(event.seconds for event in events if isinstance(event, Epoch) and event.epoch > 1)


def _ratio(slow: list[float], fast: list[float]) -> float:
    return statistics.median(one / other for one, other in zip(slow[1:], fast[1:], strict=True))
