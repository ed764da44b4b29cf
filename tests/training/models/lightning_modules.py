"""LightningModules that the tests name as targets: what users write, good and bad."""

import random
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torchmetrics.classification import MulticlassAccuracy

from nasflow.config.search import TrainingConfig
from nasflow.evaluator.base import Evaluator


class Plain(LightningModule):
    """What most users write."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__()
        self.model = model
        self.lr = lr
        self.how = how

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)


class Noisy(Plain):
    """Draws from every global generator, and writes into its batches: `always`, or `late` in a pass."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, _ = batch
        if self.how == "always" or (self.how == "late" and batch_idx == 2):
            x += torch.rand_like(x) + float(np.random.normal()) + random.gauss(0, 1)
        return super().training_step(batch, batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, _ = batch
        if self.how == "always" or (self.how == "late" and batch_idx == 1):
            x.mul_(2.0)
        super().validation_step(batch, batch_idx)


class Takes(Plain):
    """Takes its batch apart."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch.pop("x"), batch["y"]), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        batch["x"] = batch["x"] * 2
        super().validation_step((batch["x"], batch["y"]), batch_idx)


class Configured(Plain):
    """Each form of `configure_optimizers` that Lightning knows."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log("rising", float(self.current_epoch), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        forms: dict[str, Any] = {
            "optimizer": lambda: sgd,
            "list": lambda: [sgd],
            "tuple": lambda: (sgd,),
            "dict": lambda: {"optimizer": sgd},
            "lists": lambda: ([sgd], [lr_scheduler.StepLR(sgd, 1, gamma=0.3)]),
            "lists but for the schedule": lambda: ([sgd], lr_scheduler.StepLR(sgd, 1, gamma=0.3)),
            "lists but for the schedule's dict": lambda: (
                [sgd],
                scheduled(plateau(sgd), monitor="rising")["lr_scheduler"],
            ),
            "list of lists": lambda: [[sgd], [lr_scheduler.StepLR(sgd, 1, gamma=0.3)]],
            "list of dicts": lambda: [{"optimizer": sgd, "lr_scheduler": lr_scheduler.ExponentialLR(sgd, 0.5)}],
            "lists with dicts": lambda: ([sgd], [{"scheduler": lr_scheduler.CosineAnnealingLR(sgd, 12)} | BY_STEP]),
            "every second epoch": lambda: scheduled(lr_scheduler.StepLR(sgd, 1, gamma=0.1), frequency=2),
            "milestones": lambda: scheduled(lr_scheduler.MultiStepLR(sgd, [1, 2], gamma=0.2)),
            "one cycle": lambda: scheduled(
                lr_scheduler.OneCycleLR(sgd, 0.1, self.trainer.estimated_stepping_batches), interval="step"
            ),
            "every third step": lambda: scheduled(lr_scheduler.StepLR(sgd, 1, gamma=0.7), interval="step", frequency=3),
            "warm-up, then cosine": lambda: scheduled(sequence(sgd)),
            "plateau": lambda: scheduled(plateau(sgd), monitor="rising"),
            "plateau on val_loss": lambda: scheduled(plateau(sgd), monitor="val_loss"),
            "plateau, monitor beside it": lambda: {
                "optimizer": sgd,
                "lr_scheduler": plateau(sgd),
                "monitor": "rising",
            },
            "head alone": lambda: torch.optim.Adam(self.model[-1].parameters(), lr=self.lr),
            "two groups": lambda: torch.optim.AdamW(
                [{"params": self.model[0].parameters(), "lr": 1e-3}, {"params": self.model[-1].parameters()}],
                lr=self.lr,
            ),
        }
        return forms[self.how]()


CONFIGURED = [
    *("optimizer", "list", "tuple", "dict", "lists", "list of dicts", "lists with dicts", "every second epoch"),
    *("milestones", "one cycle", "every third step", "warm-up, then cosine", "plateau", "plateau on val_loss"),
    *("plateau, monitor beside it", "head alone", "two groups", "lists but for the schedule"),
    *("lists but for the schedule's dict", "list of lists"),
]
BY_STEP = {"interval": "step"}


def scheduled(schedule: Any, **options: Any) -> dict[str, Any]:
    return {"optimizer": schedule.optimizer, "lr_scheduler": {"scheduler": schedule, **options}}


def plateau(optimizer: torch.optim.Optimizer) -> lr_scheduler.ReduceLROnPlateau:
    """Drops at every epoch in which its metric did not fall: at each but the first on `rising`, at none on a loss."""
    return lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.2, patience=0)


def sequence(optimizer: torch.optim.Optimizer) -> lr_scheduler.SequentialLR:
    warm_up = lr_scheduler.LinearLR(optimizer, 0.1, total_iters=1)
    return lr_scheduler.SequentialLR(optimizer, [warm_up, lr_scheduler.CosineAnnealingLR(optimizer, 3)], [1])


class Hooked(Plain):
    """Uses every hook that is called, and what it knows of its trainer; each leaves its mark in the metrics."""

    def setup(self, stage: str) -> None:
        self.accuracy = MulticlassAccuracy(3)
        self.calls = {"setup": 1.0}

    def on_fit_start(self) -> None:
        self.mark("on_fit_start")

    def on_train_epoch_start(self) -> None:
        self.mark("on_train_epoch_start")

    def on_validation_epoch_start(self) -> None:
        self.mark("on_validation_epoch_start")

    def on_validation_epoch_end(self) -> None:
        self.mark("on_validation_epoch_end")

    def training_step(self, batch: Any) -> Any:  # Lightning lets the index be left out
        return {"loss": super().training_step(batch, 0)}

    def validation_step(self, batch: Any) -> None:
        super().validation_step(batch, 0)
        self.accuracy(self.model(batch[0]), batch[1])
        self.log_dict({"val_accuracy": self.accuracy, "val_constant": 7})

    def on_train_epoch_end(self) -> None:
        self.mark("on_train_epoch_end")
        self.log_dict(self.calls)
        self.log("epoch", self.current_epoch)
        self.log("step", self.global_step)
        self.log("epochs", self.trainer.max_epochs)
        self.log("steps", self.trainer.estimated_stepping_batches)
        self.log("batches", self.trainer.num_training_batches)

    def mark(self, hook: str) -> None:
        self.calls[hook] = self.calls.get(hook, 0.0) + 1.0


class GrowsInSetup(Plain):
    """Adds a layer and a metric in `setup`, which Lightning moves to the device and the precision."""

    def setup(self, stage: str) -> None:
        self.scale = nn.Linear(3, 3, bias=False)
        nn.init.eye_(self.scale.weight)
        self.accuracy = MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.scale(self.model(batch[0])), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        scores = self.scale(self.model(x))
        self.accuracy(scores, y)
        self.log_dict({"val_loss": F.cross_entropy(scores, y), "val_accuracy": self.accuracy})


class Collects(Plain):
    """Keeps the losses of an epoch for its end."""

    def on_train_epoch_start(self) -> None:
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.item())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("largest_loss", max(self.losses))


class CountsInTraining(Plain):
    """Updates a metric in each training step, and logs it."""

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.seen = MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        scores = self.model(x)
        self.seen.update(scores, y)
        self.log("train_accuracy", self.seen)
        self.log("train_loss", F.cross_entropy(scores, y))
        return F.cross_entropy(scores, y)


class Skips(Plain):
    """Skips its odd batches."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return None if batch_idx % 2 else super().training_step(batch, batch_idx)


class TwoOptimizers(Plain):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1), torch.optim.SGD(self.parameters(), 0.1)


class NoOptimizer(Plain):
    def configure_optimizers(self) -> Any:
        return None


class Own(Evaluator):
    """A user's evaluator, for `kind: custom`."""

    def __init__(self, config: TrainingConfig, lr: float):
        super().__init__(config)
        self.lr = lr

    def module(self, model: nn.Module) -> LightningModule:
        return Plain(model, self.lr)


class NoModel(LightningModule):
    def __init__(self, backbone: nn.Module):
        super().__init__()


def not_a_class(model: nn.Module) -> Plain:
    return Plain(model)
