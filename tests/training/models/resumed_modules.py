"""Models and LightningModules whose state is more than their tensors, as users write them."""

from typing import Any

import torch
from torch import nn
from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

from nasflow.space.pick import Pick
from tests.training.models.lightning_modules import Plain


class Renamed(nn.Linear):
    """Has had other names once: it renames what its first version has saved."""

    _version = 2

    def _load_from_state_dict(self, state_dict: Any, prefix: str, local_metadata: Any, *others: Any) -> None:
        if local_metadata.get("version", 1) < 2:
            state_dict[f"{prefix}weight"] = state_dict.pop(f"{prefix}kernel")
        super()._load_from_state_dict(state_dict, prefix, local_metadata, *others)


def versioned(pick: Pick) -> nn.Module:
    """A layer that was changed once, and one that is trained for quantization, with an observer of torch's."""
    quantized = FakeQuantize(observer=MovingAverageMinMaxObserver, eps=0.05)
    return nn.Sequential(Renamed(6, 8), quantized, nn.Tanh(), nn.Linear(8, 3))


class Grows(Plain):
    """Has a bank that grows with each epoch, and is as large as its checkpoint's when that is loaded."""

    def __init__(self, model: nn.Module, lr: float = 0.05):
        super().__init__(model, lr)
        self.register_buffer("bank", torch.zeros(0))

    def on_train_epoch_end(self) -> None:
        self.bank = torch.cat([self.bank, self.model[0].weight.detach()[:1, 0]])

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.bank = checkpoint["state_dict"]["bank"].clone()


class SwitchesGradients(Plain):
    """Computes its targets without gradients, and may raise meanwhile."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        torch.set_grad_enabled(False)
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float16)
        if self.how == "raises" and batch_idx == 1:
            raise ValueError("no targets")
        torch.set_default_dtype(default)
        torch.set_grad_enabled(True)
        return super().training_step(batch, batch_idx)


class LeavesGradientsOff(Plain):
    """Does not switch them on again, because Lightning does so for its step."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        torch.set_grad_enabled(False)


class ByHand(Plain):
    """Steps by itself: its optimizer, or the weights, for which it has switched gradients off once for all."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = "weights"):
        super().__init__(model, lr, how)
        self.automatic_optimization = False

    def on_train_start(self) -> None:
        if self.how == "weights":
            torch.set_grad_enabled(False)

    def training_step(self, batch: Any, batch_idx: int) -> None:
        if self.how == "weights":
            for weight in self.parameters():
                weight.mul_(1 - self.lr)
        else:
            self.optimizers().zero_grad()
            self.manual_backward(super().training_step(batch, batch_idx))
            self.optimizers().step()
