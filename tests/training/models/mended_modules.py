"""LightningModules whose hooks, logs and optimizers ask more of the Trainer than most."""

from functools import partialmethod
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule
from torch import nn
from torch.nn import functional as F

from tests.training.models.lightning_modules import Plain
from tests.training.models.trainer_modules import Accumulates, Noting


class Lazy(Plain):
    """Has a lazy layer, and hooks that need its sizes or what other hooks make."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(nn.Sequential(model, nn.LazyLinear(3)), lr, how)

    def on_fit_start(self) -> None:
        if self.how.startswith("/"):
            Path(self.how).mkdir()

    def on_train_epoch_start(self) -> None:
        self.norms: list[float] = []
        if self.how == "fails once":
            self.scale = 1.0

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        self.norms.append(sum(float(parameter.detach().norm()) for parameter in self.parameters()))
        if self.how == "teacher":
            for teacher, student in zip(self.parameters(), self.model.parameters(), strict=True):
                teacher.data.mul_(0.5).add_(0.5 * student.data)
        return -1 if self.how == "ends" else None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.how == "callbacks":
            assert self.trainer.callbacks
        return (self.scale if self.how == "fails once" else 1.0) * super().training_step(batch, batch_idx)

    def configure_optimizers(self) -> Any:
        assert sum(parameter.numel() for parameter in self.parameters()) > 0
        return super().configure_optimizers()


class StepsAfter(Accumulates):
    """Steps by hand with the third batch of an epoch, and after it."""

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(Plain.training_step(self, batch, batch_idx))
        if batch_idx == 2:
            self.optimizers().step()

    def on_train_epoch_end(self) -> None:
        self.optimizers().step()


class StepsInGradientHooks(Noting):
    """Steps by hand in the hook after the backward pass, once in an epoch also in another hook."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx))

    def on_after_backward(self) -> None:
        self.optimizers().step()
        self.optimizers().zero_grad()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            self.manual_backward(F.cross_entropy(self.model(batch[0]), batch[1]))
        self.note(0, self.global_step)


class PrefixesByName(Plain):
    """Puts a prefix to what it logs, by the name of Lightning's class."""

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        LightningModule.log(self, f"mine/{name}", value, *args, **options)


class LogsPartially(Plain):
    log = partialmethod(LightningModule.log, on_step=False, on_epoch=True)  # type: ignore[assignment]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.model(batch[0]), batch[1])


class LogsByLambda(Plain):
    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        lightnings = self.log
        self.log = lambda name, value, **options: lightnings(f"mine/{name}", value, **options)  # type: ignore[assignment]


class LogsByOriginal(Plain):
    """Has Lightning's method itself, as if it was kept before nasflow was imported."""

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        LightningModule.log.__wrapped__(self, f"mine/{name}", value, *args, **options)  # type: ignore[attr-defined]


class LogsTwice(Plain):
    """Writes to a logger also."""

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        super().log(f"mine/{name}", value, *args, **options)
        self.logger.log_metrics({name: float(value)})  # type: ignore[union-attr]


class LogsFirst(Plain):
    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        self.logger.log_metrics({name: float(value)})  # type: ignore[union-attr]
        super().log(name, value, *args, **options)


class LogsAtTimes(Plain):
    """Needs a logger for what validation logs only."""

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        if name.startswith("val"):
            self.logger.log_metrics({name: float(value)})  # type: ignore[union-attr]
        super().log(f"mine/{name}", value, *args, **options)


class Registered(Plain):
    """Registers its subclasses by name, once each, and has its own log."""

    names: tuple[str, ...] = ()

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        assert cls.__name__ not in Registered.names
        Registered.names += (cls.__name__,)


class Once(Registered):
    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        super().log(f"mine/{name}", value, *args, **options)


class DrawsLate(Plain):
    """Gives its model a constant in `configure_model` that no checkpoint keeps."""

    def configure_model(self) -> None:
        self.model.register_buffer("third", torch.ones(()) / 3, persistent=False)


class CallsInHooks(Plain):
    """May call its model in a hook; has a constant of the default precision in its steps."""

    def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.how == "calls":
            self.model(batch[0])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        third = torch.ones(()) / 3
        self.log("val_loss", third.double() * F.cross_entropy(self.model(batch[0]), batch[1]))


class Guards(Plain):
    """Reads the states of its optimizers and schedules in checkpoints, if they are there."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["mine"] = 1

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        if "optimizer_states" in checkpoint:
            assert checkpoint["optimizer_states"][0]["param_groups"][0]["lr"] == self.lr
        assert checkpoint.get("lr_schedulers", []) == []


class GuardsOnly(Guards):
    on_save_checkpoint = LightningModule.on_save_checkpoint


class Ahead(torch.optim.Optimizer):
    """Wraps another without `super().__init__()`, as Lookahead often does."""

    def __init__(self, inner: torch.optim.Optimizer):
        self.inner, self.param_groups, self.state, self.defaults = inner, inner.param_groups, inner.state, {}

    def step(self, closure: Any = None) -> Any:
        return self.inner.step(closure)

    def state_dict(self) -> Any:
        return self.inner.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.inner.load_state_dict(state)


class Wraps(Accumulates):
    def configure_optimizers(self) -> Any:
        return Ahead(torch.optim.SGD(self.parameters(), lr=self.lr))


class LeavesGradients(Accumulates):
    """Has gradients before it trains."""

    def on_fit_start(self) -> None:
        sum(parameter.sum() for parameter in self.parameters()).backward()  # type: ignore[union-attr]
