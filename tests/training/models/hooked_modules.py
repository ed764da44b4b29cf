"""LightningModules and callbacks that use Lightning's hooks, as users write them."""

from typing import Any

import torch
from pytorch_lightning import Callback
from pytorch_lightning.callbacks import BaseFinetuning, ModelCheckpoint, StochasticWeightAveraging, WeightAveraging
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import get_ema_avg_fn

from tests.training.models.lightning_modules import Plain


class Watches(Plain):
    """Logs what each hook for a batch sees."""

    def on_train_start(self) -> None:
        self.started = getattr(self, "started", 0) + 1

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.log("start_index", float(batch_idx), on_step=False, on_epoch=True)

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.log("before_backward", loss.detach(), on_step=False, on_epoch=True)

    def on_after_backward(self) -> None:
        self.log("largest_gradient", self.largest(), on_step=False, on_epoch=True)

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        self.log("rate", optimizer.param_groups[0]["lr"], on_step=False, on_epoch=True)
        self.log("norm", self.norm(), on_step=False, on_epoch=True)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("end_loss", outputs["loss"] + batch[0].mean(), on_step=False, on_epoch=True)

    def on_validation_start(self) -> None:
        self.validated = 0.0

    def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.validated += len(batch[0])

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.validated += 0.5

    def on_validation_end(self) -> None:
        self.weighed = self.validated

    def on_train_epoch_end(self) -> None:
        self.log_dict({"weighed": self.weighed, "started": float(self.started)})

    def largest(self) -> torch.Tensor:
        return torch.stack([p.grad.abs().max() for p in self.model.parameters() if p.grad is not None]).max()

    def norm(self) -> torch.Tensor:
        return torch.stack([p.grad.norm() for p in self.model.parameters() if p.grad is not None]).norm()


class ScalesGradients(Plain):
    """Changes gradients in place, replaces them and takes one away."""

    def on_after_backward(self) -> None:
        for place, parameter in enumerate(self.model.parameters()):
            if parameter.grad is None:
                continue
            if place % 3 == 0:
                parameter.grad *= 0.5
            elif place % 3 == 1:
                parameter.grad = parameter.grad.sign() * 1e-2
            else:
                parameter.grad = None


class Perturbs(Plain):
    """Draws noise in hooks, and changes its batches."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        batch[0].add_(0.1 * torch.randn_like(batch[0]))

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return (x * 1.5, y)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.mul_(0.99)


class Schedules(Plain):
    """Steps its schedule by the epoch's number."""

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=self.lr)
        schedule = torch.optim.lr_scheduler.LambdaLR(sgd, lambda epoch: 0.5**epoch)
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def lr_scheduler_step(self, scheduler: Any, metric: Any) -> None:
        scheduler.step(epoch=2 * self.current_epoch)


class Plans(Plain):
    """Asks its Trainer how long it will train, and logs more than means."""

    def configure_optimizers(self) -> Any:
        sgd = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        steps = self.trainer.estimated_stepping_batches
        schedule = torch.optim.lr_scheduler.OneCycleLR(sgd, max_lr=0.1, total_steps=int(steps))
        return {"optimizer": sgd, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        norms = {f"norm{place}": p.grad.norm() for place, p in enumerate(self.model.parameters()) if p.grad is not None}
        self.log_dict(norms, on_step=False, on_epoch=True, reduce_fx="max")
        self.log("smallest", sum(norms.values()), on_step=False, on_epoch=True, reduce_fx=torch.min)
        self.log("steps", 1.0, on_step=False, on_epoch=True, reduce_fx="sum")


class AddsLayers(Plain):
    """Trains only the last layer, and the others, too, from epoch `how` on."""

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(list(self.model.children())[-1].parameters(), lr=self.lr)

    def on_train_epoch_start(self) -> None:
        if str(self.current_epoch) == self.how:
            others = [p for layer in list(self.model.children())[:-1] for p in layer.parameters()]
            self.optimizers().optimizer.add_param_group({"params": others, "lr": 0.01})


class Warms(Plain):
    """Sets its rate in `optimizer_step`."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        for group in optimizer.param_groups:
            group["lr"] = self.lr * min(1.0, (self.trainer.global_step + 1) / 6)
        optimizer.step(closure=optimizer_closure)


class EverySecond(Plain):
    """Makes an update with every second batch only, from the gradients of both."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        if batch_idx % 2:
            optimizer.step(closure=optimizer_closure)
        else:
            optimizer_closure()

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if batch_idx % 2 == 0:
            optimizer.zero_grad()


class Clips(Plain):
    """Clips its gradients more and more."""

    def configure_gradient_clipping(
        self, optimizer: Any, gradient_clip_val: Any = None, gradient_clip_algorithm: Any = None
    ) -> None:
        if self.current_epoch:
            self.clip_gradients(optimizer, gradient_clip_val, gradient_clip_algorithm)


class ScalesLoss(Plain):
    """Has a backward of its own."""

    def backward(self, loss: torch.Tensor, *args: Any, **kwargs: Any) -> None:
        (3.0 * loss).backward(*args, **kwargs)

    def on_before_zero_grad(self, optimizer: Any) -> None:
        self.log("zeroed", float(len(optimizer.param_groups)), on_step=False, on_epoch=True)


class Newton(Plain):
    """An optimizer that calls the step several times."""

    def configure_optimizers(self) -> Any:
        return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=4)


class ShortEpochs(Plain):
    """Ends its epochs after two batches."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        return -1 if batch_idx == 2 else None

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("last_index", float(batch_idx), on_step=False, on_epoch=True)


class Adversaries(Plain):
    """Two networks against each other, with an optimizer and a schedule each, stepped by hand."""

    def __init__(self, model: nn.Module, lr: float = 0.05):
        super().__init__(model, lr)
        self.automatic_optimization = False
        self.critic = nn.Linear(3, 1)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        ours, theirs = self.optimizers()
        self.toggle_optimizer(theirs)
        judged = self.critic(self.model(x).detach())
        loss = F.binary_cross_entropy_with_logits(judged, (y[:, None] == 1).to(judged))
        theirs.zero_grad()
        self.manual_backward(loss)
        self.clip_gradients(theirs, gradient_clip_val=0.5, gradient_clip_algorithm="norm")
        theirs.step()
        self.untoggle_optimizer(theirs)
        out = self.model(x)
        loss = F.cross_entropy(out, y) + 0.1 * self.critic(out).mean()
        ours.zero_grad()
        self.manual_backward(loss)
        ours.step()
        if self.trainer.is_last_batch:
            for schedule in self.lr_schedulers():
                schedule.step()
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return {"loss": loss, "seen": len(x)}

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.log("seen", float(outputs["seen"]), on_step=False, on_epoch=True)
        self.log("updates", float(self.global_step), on_step=False, on_epoch=True)

    def configure_optimizers(self) -> Any:
        ours = torch.optim.SGD(self.model.parameters(), lr=self.lr, momentum=0.9)
        theirs = torch.optim.Adam(self.critic.parameters(), lr=1e-2)
        schedules = [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) for optimizer in (ours, theirs)]
        return [ours, theirs], schedules


class Remembers(Plain):
    """Keeps a number of its own in checkpoints."""

    def __init__(self, model: nn.Module, lr: float = 0.05):
        super().__init__(model, lr)
        self.batches = 0

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.batches += 1
        self.log("batches_so_far", float(self.batches), on_step=False, on_epoch=True)
        return super().training_step(batch, batch_idx)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["batches"] = self.batches

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        assert checkpoint["epoch"] * 4 == checkpoint["batches"] == checkpoint["global_step"]
        self.batches = checkpoint["batches"]


class BringsCallbacks(Plain):
    """Names its callbacks itself, and has a layer that is made late."""

    def configure_callbacks(self) -> Any:
        return Counts()

    def configure_model(self) -> None:
        if not hasattr(self, "scale"):
            self.scale = nn.Linear(3, 3, bias=False)
            nn.init.eye_(self.scale.weight)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return F.cross_entropy(self.scale(self.model(batch[0])), batch[1])


class Counts(Callback):
    """Progress of one's own."""

    def __init__(self, name: str = "counted") -> None:
        self.name = name
        self.count = 0

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.count += 1

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.log(self.name, float(self.count))  # as Lightning lets them

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.count = state_dict["count"]


class Average(WeightAveraging):
    """An exponential moving average of weights."""

    def __init__(self, decay: float = 0.8):
        super().__init__(avg_fn=get_ema_avg_fn(decay))


class LogsAverage(Average):
    """Logs the size of the averaged weights."""

    def on_validation_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.log("val_weight", float(sum(p.detach().abs().sum() for p in pl_module.parameters())))
        super().on_validation_epoch_end(trainer, pl_module)


class Stops(Callback):
    """Ends training after two epochs."""

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.should_stop = trainer.current_epoch == 1


class Raises(Callback):
    def __init__(self, at: int) -> None:
        self.at = at

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == self.at:
            raise ValueError("the callback's own fault")


class Saves(ModelCheckpoint):
    pass


class BringsAveraging(Plain):
    def configure_callbacks(self) -> Any:
        return [StochasticWeightAveraging(1e-2)]


class BringsLogging(Plain):
    def configure_callbacks(self) -> Any:
        return LogsAverage(0.5)


class SavesByHand(Plain):
    def on_train_epoch_end(self) -> None:
        self.trainer.save_checkpoint("mine.ckpt")


class LogsFromAMixin:
    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int, unused: int = 0) -> None:
        self.log("mixed_in", outputs["loss"], on_step=False, on_epoch=True)  # type: ignore[attr-defined]


class Mixed(LogsFromAMixin, Plain):
    """Has a hook of a mixin, one that is set on the object, and metrics that it reads."""

    def __init__(self, model: nn.Module, lr: float = 0.05):
        super().__init__(model, lr)
        self.seen = 0.0
        self.on_train_epoch_start = self.count  # type: ignore[method-assign]

    def count(self) -> None:
        self.seen += 1.0

    def on_train_epoch_end(self) -> None:
        known = self.trainer.callback_metrics
        self.log_dict({"epochs_seen": self.seen, "val_loss_seen": float(known["val_loss"])})


class Thaws(BaseFinetuning):
    """Trains the last layer first, and all from the second epoch on."""

    def freeze_before_training(self, pl_module: Any) -> None:
        self.freeze(list(pl_module.model.children())[:-1])

    def finetune_function(self, pl_module: Any, epoch: int, optimizer: Any) -> None:
        if epoch == 1:
            self.unfreeze_and_add_param_group(list(pl_module.model.children())[:-1], optimizer)


class OnlyTrained(Plain):
    def configure_optimizers(self) -> Any:
        return torch.optim.SGD([p for p in self.parameters() if p.requires_grad], lr=self.lr)


class Shadows(Callback):
    """Averages weights in a way of the user's: from set-up on, shown in validation, and kept at the end."""

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self.shadow = {name: weight.detach().clone() for name, weight in pl_module.named_parameters()}

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
        for name, weight in pl_module.named_parameters():
            self.shadow[name].lerp_(weight.detach(), 0.5)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        self.trained = {name: weight.detach().clone() for name, weight in pl_module.named_parameters()}
        self._put(pl_module, self.shadow)

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        self._put(pl_module, self.trained)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._put(pl_module, self.shadow)

    def _put(self, pl_module: Any, weights: dict[str, torch.Tensor]) -> None:
        with torch.no_grad():
            for name, weight in pl_module.named_parameters():
                weight.copy_(weights[name])
