"""LightningModules that freeze, keep or lack something as checkpoints and lazy layers see it."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.space.pick import Pick
from tests.training.models.hooked_modules import Counts
from tests.training.models.lightning_modules import Plain


class Thaws(Plain):
    """Trains its first layer from the second epoch on."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.model[0].requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            self.model[0].requires_grad_(True)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class FreezesWithin(Plain):
    """Has a constant that no checkpoint keeps, and may freeze a layer within an epoch."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.register_buffer("third", torch.ones(()) / 3, persistent=False)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.how == "freezes" and self.current_epoch == 1 and batch_idx == 1:
            self.model[0].requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return self.third * super().training_step(batch, batch_idx)


class Elsewhere(Plain):
    """Has its model under another name, and a `state_dict` that takes nothing."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(nn.Identity(), lr, how)
        self.backbone = model

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.backbone(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", F.cross_entropy(self.backbone(batch[0]), batch[1]))

    def state_dict(self) -> dict[str, Any]:  # type: ignore[override]
        return super().state_dict()


class ChangesCheckpoints(Plain):
    """Reads and drops what Lightning has in a checkpoint."""

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        [state] = checkpoint.pop("optimizer_states")
        [schedule] = checkpoint["lr_schedulers"]
        checkpoint["rate"] = state["param_groups"][0]["lr"] + schedule["last_epoch"]
        assert checkpoint["callbacks"] == {"Counts": {"count": self.trainer.callbacks[0].count}}
        assert "loops" in checkpoint and checkpoint["pytorch-lightning_version"]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.rate = checkpoint["rate"]
        assert len({"optimizer_states", "lr_schedulers", "callbacks", "loops"} - checkpoint.keys()) == 0

    def configure_callbacks(self) -> Any:
        return Counts()

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=self.lr)
        return [sgd], [torch.optim.lr_scheduler.StepLR(sgd, 1, gamma=0.5)]


class Pair(Plain):
    """Trains a layer by two optimizers, which it steps by hand."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        for optimizer in self.optimizers(use_pl_optimizer=self.how != "torch's"):
            optimizer.zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            optimizer.step()

    def configure_optimizers(self) -> Any:
        first = torch.optim.SGD(self.model[0].parameters(), lr=self.lr)
        return [first, torch.optim.SGD(self.model.parameters(), lr=self.lr)]


class LazyByHand(Plain):
    """Has a lazy layer after its transfer hook, steps by hand, and begins its epochs with an empty list."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.automatic_optimization = False
        self.head = nn.LazyLinear(3)

    def on_train_epoch_start(self) -> None:
        self.losses: list[float] = []

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        return batch[0][:, :4], batch[1]

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer: Any = self.optimizers()
        optimizer.zero_grad()
        loss = F.cross_entropy(self.head(torch.cat([self.model(batch[0]), batch[0]], 1)), batch[1])
        self.losses.append(float(loss))
        self.manual_backward(loss)
        optimizer.step()
        self.lr_schedulers().step()
        self.log("rate", optimizer.param_groups[0]["lr"], on_step=False, on_epoch=True)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        out = self.head(torch.cat([self.model(batch[0]), batch[0]], 1))
        self.log("val_loss", F.cross_entropy(out, batch[1]))

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        return [sgd], [torch.optim.lr_scheduler.ExponentialLR(sgd, 0.9)]


def lazy(pick: Pick) -> nn.Module:
    return nn.Sequential(nn.LazyLinear(5), nn.Tanh())
