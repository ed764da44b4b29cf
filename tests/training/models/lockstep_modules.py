"""LightningModules in many styles, as users write them. The tests fuse their models and nothing else of them."""

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.training.models.lightning_modules import Plain


class CustomLoss(Plain):
    """A focal loss, written out."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        log = F.log_softmax(self.model(x), 1)
        picked = log.gather(1, y[:, None]).squeeze(1)
        loss = -((1 - picked.exp()) ** 2 * picked).mean()
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return {"loss": loss}


class TwoCalls(Plain):
    """A second view of the batch must give the same classes."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        one, other = self.model(x), self.model(x + 0.1 * torch.randn_like(x))
        return F.cross_entropy(one, y) + F.kl_div(F.log_softmax(other, 1), F.softmax(one.detach(), 1))


class Mixup(Plain):
    """Mixes the batch with itself, each member with other weights."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        share, order = float(torch.rand(())), torch.randperm(len(x))
        out = self.model(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])


class L1(Plain):
    """A penalty of the model's own weights."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        penalty = sum(parameter.abs().sum() for parameter in self.model.parameters())
        return F.cross_entropy(self.model(x), y) + 1e-2 * penalty


class OwnParameter(Plain):
    """A temperature that is trained, and an in-place division by it."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.temperature = nn.Parameter(torch.ones(()))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out = self.model(x)
        out /= self.temperature
        return F.cross_entropy(out, y)

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Teacher(Plain):
    """Learns from an average of its weights, which is changed in the step."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.teacher = copy.deepcopy(model).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out = self.model(x)
        with torch.no_grad():
            self_taught = self.teacher(x).softmax(1)
            for its, own in zip(self.teacher.parameters(), self.model.parameters(), strict=True):
                its.lerp_(own, 0.1)
        return F.cross_entropy(out, y) + F.cross_entropy(out, self_taught)


class StepSchedule(Plain):
    """A schedule that steps with each batch."""

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.Adam(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, total_steps=40)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Groups(Plain):
    """Groups of parameters with their own rates."""

    def configure_optimizers(self) -> Any:
        weights = [parameter for parameter in self.model.parameters() if parameter.ndim > 1]
        others = [parameter for parameter in self.model.parameters() if parameter.ndim <= 1]
        return torch.optim.AdamW(
            [{"params": weights, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0, "lr": self.lr / 2}],
            lr=self.lr,
        )


class SometimesNone(Plain):
    """Leaves out batches, each member others."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if torch.rand(()) < 0.4:
            return None
        return super().training_step(batch, batch_idx)


class SometimesNoneMomentum(SometimesNone):
    """With a dampened momentum, which is another in its first step, and weight decay."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9, dampening=0.5, weight_decay=0.1)


class SometimesNoneAdamW(SometimesNone):
    """With an optimizer that counts its steps, and decays weights in each."""

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.1)


class Dicts(Plain):
    """Batches that are dicts."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch["x"], batch["y"]), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step((batch["x"], batch["y"]), batch_idx)


class Forward(Plain):
    """Calls itself, flattens its input, and validates without the model's softmax."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.model(x.flatten(1))  # type: ignore[no-any-return]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self(x), y)


class NoGradFirst(Plain):
    """Looks at its outputs without gradients first."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        with torch.no_grad():
            hard = (self.model(x).argmax(1) != y).double() + 1
        losses = F.cross_entropy(self.model(x), y, reduction="none")
        return (losses * hard).mean()


class Counting(Plain):
    """Counts its steps in a list, on whose length each loss depends."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.seen: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.seen.append(float(loss))
        self.log("seen", float(len(self.seen)))
        return loss * (1 + 0.01 * len(self.seen))


class Adversarial(Plain):
    """A step against the gradient of its input: a backward through the model in the step itself."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        x = x.clone().requires_grad_()
        [towards] = torch.autograd.grad(F.cross_entropy(self.model(x), y), x)
        return F.cross_entropy(self.model((x + 0.1 * towards.sign()).detach()), y)


class Autocast(Plain):
    """An autocast around the model."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(self.model(x), y)


class Unfreezes(Plain):
    """Trains its first layer from the second epoch on."""

    def on_train_epoch_start(self) -> None:
        for parameter in next(iter(self.model.children())).parameters():
            parameter.requires_grad_(self.current_epoch > 0)


class RaisesBefore(Plain):
    """The second member raises before its model is called, in a later step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.how == "raise" and self.global_step == 5:
            raise ValueError("before the model")
        return super().training_step(batch, batch_idx)


class RaisesAfter(Plain):
    """The second member raises after its model was called, in a later step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if self.how == "raise" and self.global_step == 5:
            raise ValueError("after the model")
        return loss


class LacksMemory(Plain):
    """The second member finds the memory full, once."""

    is_full = True

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if self.how == "raise" and self.global_step == 5 and LacksMemory.is_full:
            LacksMemory.is_full = False
            raise torch.OutOfMemoryError("no room")
        return loss


class ReplacesWeights(Plain):
    """Puts clipped weights in the place of its weights, from the second epoch on."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.current_epoch > 0:
            for parameter in self.model.parameters():
                parameter.data = parameter.data.clamp(-1, 1)
        return super().training_step(batch, batch_idx)


class BackwardLater(Plain):
    """A penalty on the gradient of its input, from the second epoch on."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.current_epoch == 0:
            return super().training_step(batch, batch_idx)
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        parameter = next(self.model.parameters())
        [towards] = torch.autograd.grad(loss, parameter, retain_graph=True, allow_unused=True)
        return loss if towards is None else loss * (1 + towards.abs().mean())


class OwnWarmup(Plain):
    """Sets the learning rate of its optimizer in the step."""

    def configure_optimizers(self) -> Any:
        self.__dict__["optimizer"] = super().configure_optimizers()
        return self.__dict__["optimizer"]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        for group in self.__dict__["optimizer"].param_groups:
            group["lr"] = self.lr * min(1.0, (self.global_step + 1) / 8)
        return super().training_step(batch, batch_idx)
