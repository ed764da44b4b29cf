"""LightningModules that change in hooks, schedules and steps what a merged step relies on, or read what it has left."""

from typing import Any

import torch
from pytorch_lightning import Callback
from torch import nn

from nasflow.space.pick import Pick
from tests.training.models.lightning_modules import Plain


def dropping(pick: Pick) -> nn.Module:
    width = pick("width", [4, 8])
    return nn.Sequential(nn.Linear(6, width), nn.Dropout(0.2), nn.ReLU(), nn.Linear(width, 3))


class LateMask(Plain):
    """Makes a buffer in its first step, and freezes its bias."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.register_buffer("mask", None)
        self.shift = nn.Parameter(torch.zeros(()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.how == "freezes":
            self.shift.requires_grad_(False)
        if self.mask is None:
            self.mask = torch.ones(3)
        return super().training_step(batch, batch_idx) + self.shift * self.mask.sum()


class LastBatch(Plain):
    """Weighs the last batch of each epoch more."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        last = self.trainer.is_last_batch
        self.log("last", float(last), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx) * (3.0 if last else 1.0)


class Strict(nn.Sequential):
    """Refuses one of the modes."""

    refuses: bool | None = None

    def train(self, mode: bool = True) -> Any:
        if mode is self.refuses:
            raise ValueError("no other mode")
        return super().train(mode)


class _Leaving(nn.ReLU):
    """Refuses to train again."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "training" and value and not vars(self).get("training", True):
            raise ValueError("no other mode")
        super().__setattr__(name, value)


def strict(pick: Pick) -> nn.Module:
    refuses = pick("refuses", ["nothing", "evaluation", "training"])
    layers = Strict(nn.Linear(6, 8), _Leaving() if refuses == "training" else nn.ReLU(), nn.Linear(8, 3))
    layers.refuses = False if refuses == "evaluation" else None
    return layers


class Shaken(torch.optim.SGD):
    """Adds noise to each step."""

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(torch.randn_like(parameter), alpha=1e-2)
        return loss


class Sharp(torch.optim.SGD):
    """Steps by the gradients a little further up, for which it calls the step twice."""

    def step(self, closure: Any = None) -> Any:
        assert closure is not None, "it needs a closure"
        loss = closure()
        parameters = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        away = [0.05 * p.grad for p in parameters]
        with torch.no_grad():
            torch._foreach_add_(parameters, away)
        closure()
        with torch.no_grad():
            torch._foreach_sub_(parameters, away)
        super().step()
        return loss


class Plainly(torch.optim.SGD):
    """Does not call its closure: the gradients have to be there."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.sign(), alpha=group["lr"])


class OwnOptimizer(Plain):
    """Has an optimizer of the user's, or one of torch's that runs code of theirs."""

    def configure_optimizers(self) -> Any:
        kinds: dict[str, Any] = {"shaken": Shaken, "sharp": Sharp, "plainly": Plainly}
        optimizer = kinds.get(self.how, torch.optim.SGD)(self.parameters(), lr=self.lr)
        if self.how == "hooked":
            optimizer.register_step_post_hook(shake)
        return optimizer


def shake(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    parameter = optimizer.param_groups[0]["params"][0]
    with torch.no_grad():
        parameter.add_(torch.randn_like(parameter), alpha=1e-2)


class Jitters(torch.optim.lr_scheduler.LRScheduler):
    """Draws the rate of each step."""

    def get_lr(self) -> list[float]:
        return [base * float(0.5 + torch.rand(())) for base in self.base_lrs]


class Curriculum(torch.optim.lr_scheduler.LRScheduler):
    """Raises the rate of a dropout, not that of the optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer, layer: nn.Dropout):
        self._layers = [layer]
        super().__init__(optimizer)

    def get_lr(self) -> list[float]:
        self._layers[0].p = min(0.9, 0.1 * self.last_epoch)
        return list(self.base_lrs)

    def state_dict(self) -> dict[str, Any]:
        return {key: value for key, value in super().state_dict().items() if key != "_layers"}


class OwnSchedule(Plain):
    """Has a schedule of the user's: one that draws, by step; one that changes the model, by step or epoch."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.SGD(self.parameters(), lr=self.lr)
        layer = next((layer for layer in self.model.modules() if isinstance(layer, nn.Dropout)), nn.Dropout())
        schedule = Jitters(optimizer) if self.how == "draws" else Curriculum(optimizer, layer)
        interval = "epoch" if self.how == "by epoch" else "step"
        return [optimizer], [{"scheduler": schedule, "interval": interval}]


class Resets(Callback):
    """Resets the state of the optimizer within each epoch, at a batch."""

    def __init__(self, how: str, at: int):
        self.how, self.at = how, at

    def on_train_batch_end(self, trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.at:
            reset(trainer.optimizers[0], self.how)


def reset(optimizer: torch.optim.Optimizer, how: str) -> None:
    if how == "clear":
        optimizer.state.clear()
    for state in optimizer.state.values():
        for name, value in state.items():
            if how == "replace":
                state[name] = torch.zeros_like(value)
            elif how == "zero":
                value.zero_()


class Adaptive(Plain):
    """Has an optimizer with a state, which it may reset in its own step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.how in ("clear", "replace") and batch_idx == 2:
            reset(self.trainer.optimizers[0], self.how)
        return super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        kind = torch.optim.Adagrad if self.how == "adagrad" else torch.optim.AdamW
        return kind(self.parameters(), lr=self.lr)


class LooksBack(Plain):
    """Logs the norm of the last step's gradients in its step, or before the batch."""

    def norm(self) -> None:
        norms = [p.grad.norm() for p in self.model.parameters() if p.grad is not None]
        self.log("norm", torch.stack(norms).norm() if norms else 0.0, on_step=False, on_epoch=True)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.how == "step":
            self.norm()
        return super().training_step(batch, batch_idx)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.how == "hook":
            self.norm()
