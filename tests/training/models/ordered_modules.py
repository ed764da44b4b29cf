"""LightningModules and callbacks that rely on the order of Lightning's hooks, or on what its Trainer shows."""

from typing import Any

import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import EarlyStopping
from torch import nn
from torch.nn import functional as F

from nasflow.space.pick import Pick
from tests.training.models.lightning_modules import Plain


class Fourier(nn.Module):
    """Fixed random features, which are neither parameter nor buffer."""

    def __init__(self, features: int, width: int):
        super().__init__()
        self.directions = torch.randn(features, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.cos(x @ self.directions)


def fourier(pick: Pick) -> nn.Module:
    width = pick("width", [8, 16])
    return nn.Sequential(Fourier(6, width), nn.Linear(width, 3))


class Averages(Plain):
    """Validates by a running average of the weights, given to one call, or in their place for an epoch."""

    def on_fit_start(self) -> None:
        self.average = {name: p.detach().clone() for name, p in self.model.named_parameters()}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        for name, parameter in self.model.named_parameters():
            self.average[name].lerp_(parameter.detach(), 0.2)


class AveragesByCall(Averages):
    """By `torch.func`."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(torch.func.functional_call(self.model, self.average, (x,)), y))


class AveragesBySwap(Averages):
    """By other data of the parameters."""

    def swap(self) -> None:
        for name, parameter in self.model.named_parameters():
            parameter.data, self.average[name] = self.average[name], parameter.data

    def on_validation_epoch_start(self) -> None:
        self.swap()

    def on_validation_epoch_end(self) -> None:
        self.swap()


class TeachesBySwap(Averages):
    """Swaps for a part of the training step only."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        with torch.no_grad():
            AveragesBySwap.swap(self)  # type: ignore[arg-type]
            taught = F.softmax(self.model(x), 1)
            AveragesBySwap.swap(self)  # type: ignore[arg-type]
        out = self.model(x)
        return F.cross_entropy(out, y) + F.kl_div(F.log_softmax(out, 1), taught)


class Masks(Plain):
    """Has a frozen parameter with infinities, which its optimizer gets as well."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.mask = nn.Parameter(torch.full((3, 3), -torch.inf).triu(1), requires_grad=False)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class ProjectsGradients(Plain):
    """Multiplies gradients after the backward, which needs their own precision."""

    def on_after_backward(self) -> None:
        for parameter in self.model.parameters():
            if parameter.grad is not None and parameter.ndim == 2:
                projection = torch.linspace(0.5, 1.5, len(parameter)).diag().to(parameter)
                parameter.grad = projection @ parameter.grad


class LogsRate(Plain):
    """Logs the rate after each batch, once schedules were stepped."""

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("rate", self.trainer.optimizers[0].param_groups[0]["lr"], on_step=False, on_epoch=True)

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class LogsGradients(Plain):
    """Logs the norm of the gradients after each batch."""

    def configure_optimizers(self) -> Any:
        kinds: dict[str, Any] = {
            "decay": lambda p: torch.optim.SGD(p, self.lr, momentum=0.9, weight_decay=0.1, nesterov=True),
            "rms": lambda p: torch.optim.RMSprop(p, self.lr, weight_decay=0.1),
            "adagrad": lambda p: torch.optim.Adagrad(p, self.lr, weight_decay=0.1),
        }
        return kinds[self.how](self.parameters()) if self.how else super().configure_optimizers()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        norms = [p.grad.norm() for p in self.model.parameters() if p.grad is not None]
        self.log("norm", torch.stack(norms).norm(), on_step=False, on_epoch=True)


class Collects(Plain):
    """Keeps the losses of an epoch, and counts epochs beside its weights; one freezes a layer within the second."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.losses: list[torch.Tensor] = []
        self.started = 0

    def on_train_epoch_start(self) -> None:
        self.started += 1

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.how == "freezes" and self.current_epoch == 1 and batch_idx == 2:
            next(self.model.parameters()).requires_grad_(False)
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        return loss

    def on_train_epoch_end(self) -> None:
        self.log("mean", torch.stack(self.losses).mean())
        self.log("started", float(self.started))
        self.losses.clear()

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["started"] = self.started

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.started = checkpoint["started"]


class Headed(Plain):
    """Has another layer behind the model."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.head = nn.Linear(3, 3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self.head(self.model(x)), y)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.head(self.model(x)), y))


class SavesHead(Plain):
    """Keeps a frozen head out of checkpoints, and has a bank whose size they tell."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.head = nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("bank", torch.zeros(1))
        nn.init.eye_(self.head.weight)
        if how == "lenient":
            self.strict_loading = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self.head(self.model(x)), y)

    def on_train_epoch_end(self) -> None:
        self.bank = torch.cat([self.bank, self.bank.new_ones(1)])

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        for name in [name for name in checkpoint["state_dict"] if name.startswith("head.")]:
            del checkpoint["state_dict"][name]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.bank = torch.empty_like(checkpoint["state_dict"]["bank"])
        if self.how != "lenient":
            checkpoint["state_dict"].update({f"head.{name}": t for name, t in self.head.state_dict().items()})


class Plateau(torch.optim.lr_scheduler.ReduceLROnPlateau):
    """One that no class says to go by a metric."""


class Wraps:
    """A schedule of one's own that goes by a metric."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer, self.best = optimizer, float("inf")

    def step(self, metric: float) -> None:
        if metric >= self.best:
            self.optimizer.param_groups[0]["lr"] /= 2
        self.best = min(self.best, metric)

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = state["best"]


class Schedules(Plain):
    """Has a schedule that goes by a metric."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        more: dict[str, Any] = {
            "own": {"scheduler": Wraps(optimizer), "reduce_on_plateau": True, "monitor": "val_loss"},
            "lenient": {"scheduler": Plateau(optimizer), "monitor": "none_such", "strict": False},
            "by step": {"scheduler": Plateau(optimizer), "monitor": "val_loss", "interval": "step"},
        }
        return {"optimizer": optimizer, "lr_scheduler": more[self.how]}


class LooksAtTrainer(Plain):
    """Logs whose model its Trainer shows, and what it logged."""

    def on_validation_epoch_end(self) -> None:
        trainer: Any = self.trainer
        self.log("own_model", float(trainer.model is self and trainer.strategy.model is self))
        self.log("every", float(trainer.check_val_every_n_epoch))
        self.log("seen", float("val_loss" in trainer.logged_metrics))
        self.log("rows", float(trainer.val_dataloaders.size))


class AsksForLoader(Plain):
    """Counts the batches of its Trainer's loader."""

    def on_train_start(self) -> None:
        len(self.trainer.train_dataloader)  # type: ignore[arg-type]


class Clamps(Callback):
    """Changes the weights of its Trainer's model."""

    def on_train_batch_end(self, trainer: Any, *_: Any) -> None:
        for parameter in trainer.model.parameters():
            parameter.data.clamp_(-0.1, 0.1)


class LogsAtEnd(Plain):
    """Logs what an early stop monitors in the last hook of an epoch."""

    def on_train_epoch_end(self) -> None:
        self.log("late", 1.0 + self.current_epoch)

    def configure_callbacks(self) -> Any:
        return EarlyStopping("late", patience=1)


class StopsByValidation(Plain):
    """Stops early by what only an epoch with a validation has."""

    def configure_callbacks(self) -> Any:
        return EarlyStopping("val_loss", patience=1, min_delta=10.0)


class SavesTrained(Plain):
    """Puts another state dict in place of the checkpoint's."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        trained = {name for name, _ in self.named_parameters()}
        checkpoint["state_dict"] = {name: t for name, t in checkpoint["state_dict"].items() if name in trained}


class StepsPlateau(Schedules):
    """Steps a schedule that goes by a metric by itself."""

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(1.0)


class KeepsDropout(Plain):
    """Validates in training mode."""

    def on_validation_model_eval(self) -> None:
        self.train()
