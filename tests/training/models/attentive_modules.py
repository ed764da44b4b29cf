"""LightningModules that look closely at what Lightning shows them, and when."""

from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule
from torch import nn
from torch.nn import functional as F
from torch.optim import lr_scheduler
from torchmetrics.classification import MulticlassAccuracy

from tests.training.models.lightning_modules import Plain


class ThawsItself(Plain):
    """Freezes all but the last layer before training, and trains them, too, from the second epoch on."""

    def on_fit_start(self) -> None:
        if self.how == "on_fit_start":
            self.freeze_body(True)

    def on_train_start(self) -> None:
        if self.how == "on_train_start":
            self.freeze_body(True)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.freeze_body(False)

    def freeze_body(self, frozen: bool) -> None:
        for layer in list(self.model.children())[:-1]:
            layer.requires_grad_(not frozen)


class Scores(Plain):
    """Logs torchmetrics of training and validation, and what it reads of them."""

    def __init__(self, model: nn.Module, lr: float = 0.05):
        super().__init__(model, lr)
        self.train_acc, self.val_acc = MulticlassAccuracy(3), MulticlassAccuracy(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out = self.model(x)
        self.train_acc.update(out, y)
        self.log("train_acc", self.train_acc, on_step=False, on_epoch=True)
        return F.cross_entropy(out, y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        out = self.model(x)
        self.val_acc.update(out, y)
        self.log("val_acc", self.val_acc)

    def on_train_epoch_end(self) -> None:
        known = self.trainer.callback_metrics
        self.log_dict({f"{name}_read": float(known[name]) for name in ("train_acc", "val_acc")})


class ReadsBetween(Callback):
    """Reads within an epoch which metrics are known, as a progress bar does."""

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("known", float("train_acc" in trainer.callback_metrics), on_step=False, on_epoch=True)


class Inner(LightningModule):
    """A part that is a LightningModule, and goes by the epoch and the step."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.model(x)
        return out * (1.0 + self.current_epoch) + 0.01 * self.global_step


class Outer(Plain):
    """Has its model in a part that is a LightningModule."""

    def __init__(self, model: nn.Module, lr: float = 0.05):
        super().__init__(model, lr)
        self.inner = Inner(model)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        self.log("inner_epoch", float(self.inner.current_epoch), on_step=False, on_epoch=True)
        return F.cross_entropy(self.inner(x), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.inner(x), y))


class SkipsHalf(Plain):
    """Has no loss for every second batch, and logs what its hook gets."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return None if batch_idx % 2 else {"loss": loss, "extra": 1}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("outputs", float(len(outputs)), on_step=False, on_epoch=True)


class OwnSGD(torch.optim.SGD):
    """With a `zero_grad` that takes nothing."""

    def zero_grad(self) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.grad = None


class OwnOptimizer(Plain):
    def configure_optimizers(self) -> Any:
        return OwnSGD(self.parameters(), lr=self.lr)


class Rates(Plain):
    """Logs its rate wherever it can see it."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note("batches")
        self.log("last_batch", self.rate() if batch_idx == 3 else 0.0, on_step=False, on_epoch=True, reduce_fx="max")

    def on_validation_start(self) -> None:
        self.note("validation_start")

    def on_validation_epoch_end(self) -> None:
        self.note("validation")

    def on_train_epoch_end(self) -> None:
        self.note("epoch")

    def note(self, name: str) -> None:
        self.log(f"rate_{name}", self.rate(), on_step=False, on_epoch=True)

    def rate(self) -> float:
        return float(self.trainer.optimizers[0].param_groups[0]["lr"])

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        plateau = lr_scheduler.ReduceLROnPlateau(sgd, factor=0.5, patience=0, threshold=9.0)
        by_metric = {"scheduler": plateau, "monitor": "val_loss"}
        return [sgd], [lr_scheduler.StepLR(sgd, 1, gamma=0.3), by_metric]


class RatesOfHooklessBatches(Rates):
    """The same, but without a hook for batches."""

    on_train_batch_end = LightningModule.on_train_batch_end


class Looks(Plain):
    """Logs its progress and its data when it is scored."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step(batch, batch_idx)
        self.look()

    def test_step(self, batch: Any, batch_idx: int) -> None:
        self.look()

    def look(self) -> None:
        seen = {"epoch": self.current_epoch, "step": self.global_step, "epochs": self.trainer.max_epochs}
        self.log_dict({f"val_{name}": float(value) for name, value in seen.items()})
        self.log("val_has_data", float(self.trainer.datamodule is not None))

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert checkpoint["epoch"] == 3 and checkpoint["global_step"] == 12


class StopsItself(Callback):
    """Asks to stop after the third epoch."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        if trainer.current_epoch == 2:
            trainer.should_stop = True


def by_epoch(pick: Any) -> nn.Module:
    """A candidate's model that is a LightningModule."""
    return Inner(nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, pick("classes", [3]))))
