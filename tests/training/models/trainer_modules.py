"""LightningModules that rely on what the Trainer does around their steps; what they see is in a buffer."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.training.models.hooked_modules import Counts
from tests.training.models.lightning_modules import Plain


class Noting(Plain):
    """Counts in a buffer what is called, and notes what it sees."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.register_buffer("noted", torch.zeros(24))

    def note(self, place: int, value: Any = None) -> None:
        with torch.no_grad():
            self.noted[place] = self.noted[place] + 1 if value is None else float(value)


class Sharp(torch.optim.SGD):
    """Sharpness-aware steps, which call the closure twice."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        closure()
        moves = [0.1 * p.grad for p in self.param_groups[0]["params"]]
        torch._foreach_add_(self.param_groups[0]["params"], moves)
        loss = closure()
        torch._foreach_sub_(self.param_groups[0]["params"], moves)
        super().step()
        return loss


class CallsTwice(Noting):
    """Has an optimizer that calls the step several times, on a batch that the step writes into."""

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.note(0)
        return batch

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        self.note(1)
        return super().transfer_batch_to_device(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.note(2)
        return batch

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        self.note(3)
        batch[0].add_(0.1 * torch.randn_like(batch[0]))
        return -1 if self.how == "sharp, short" and batch_idx == 2 else None

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.note(4)
        batch[0].mul_(0.9)
        return super().training_step(batch, batch_idx)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.note(5)
        self.note(6, batch[0].sum())

    def configure_optimizers(self) -> Any:
        if self.how == "newton":
            return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)
        return Sharp(self.parameters(), lr=self.lr)


class Repeats(Plain):
    """Has each sample twice in some of its batches, so that these weigh more in what is logged."""

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        return (torch.cat([x, x]), torch.cat([y, y])) if x[0, 0] > 0 else batch


class Accumulates(Noting):
    """Steps by hand with every third batch, from the gradients of all three."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx) / 3)
        self.note(0)
        if self.noted[0] % 3 == 0:
            self.optimizers().step()
            self.optimizers().zero_grad()


class Keeps(Accumulates):
    """Keeps its gradients in validation."""

    def on_validation_model_zero_grad(self) -> None:
        self.note(1)


class EveryThird(Noting):
    """As `Accumulates`, by hooks."""

    def optimizer_step(self, epoch: int, batch_idx: int, optimizer: Any, optimizer_closure: Any = None) -> None:
        self.note(0)
        if self.noted[0] % 3:
            optimizer_closure()
        else:
            optimizer.step(closure=optimizer_closure)

    def optimizer_zero_grad(self, epoch: int, batch_idx: int, optimizer: Any) -> None:
        if self.noted[0] % 3 == 1:
            optimizer.zero_grad()


class StepsInHooks(Noting):
    """Steps by hand, also at the end of an epoch."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.manual_backward(super().training_step(batch, batch_idx))
        if batch_idx % 2:
            self.optimizers().step()
            self.optimizers().zero_grad()

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        if not batch_idx % 2:
            self.optimizers().step()
        self.note(0, self.global_step)


class Prefixes(Plain):
    """Puts a prefix to what it logs."""

    def log(self, name: str, value: Any, *args: Any, **options: Any) -> None:
        super().log(f"mine/{name}", value, *args, **options)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        out = self.model(x)
        self.log_dict({"val_loss": F.cross_entropy(out, y), "val_size": out.abs().mean()}, prog_bar=False)


class PrefixesDicts(Prefixes):
    """Puts another prefix to what it logs in a dict."""

    def log_dict(self, dictionary: Any, *args: Any, **options: Any) -> None:
        super().log_dict({f"all/{name}": value for name, value in dictionary.items()}, *args, **options)


class Writes(Plain):
    """Has a `log` that is no log of Lightning's."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.lines: list[str] = []

    def log(self, line: str) -> None:  # type: ignore[override]
        self.lines.append(line)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.log(f"batch {batch_idx}")
        return F.cross_entropy(self.model(batch[0]), batch[1])

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("validation")


class Replaces(Plain):
    """Brings a callback in the place of the config's."""

    def configure_callbacks(self) -> Any:
        return [CountsMore("by the module")] if self.how == "more" else Counts("by the module")


class CountsMore(Counts):
    pass


class Looks(Noting):
    """Reads its optimizers and schedules wherever the Trainer has them."""

    def setup(self, stage: str) -> None:
        self.look(0)
        self.note(20, self.trainer.gradient_clip_val or 0)
        self.note(21, str(self.trainer.gradient_clip_algorithm) == "GradClipAlgorithmType.NORM")

    def configure_optimizers(self) -> Any:
        self.look(4)
        sgd = torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(sgd, factor=0.5, patience=0)
        by_metric = {"scheduler": plateau, "monitor": "val_loss", "strict": False, "name": "plateau"}
        return [sgd], [by_metric, torch.optim.lr_scheduler.StepLR(sgd, 2)]

    def on_fit_start(self) -> None:
        self.look(8)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.look(12)
        first, second = self.trainer.lr_scheduler_configs
        self.note(16, first.monitor == "val_loss" and second.monitor is None)
        self.note(17, first.reduce_on_plateau and not second.reduce_on_plateau)
        self.note(18, not first.strict and second.strict)
        self.note(19, self.trainer.strategy.lr_scheduler_configs[0].name == "plateau")
        assert self.lr_schedulers()[1] is second.scheduler
        assert self.trainer.strategy.optimizers[0] is self.optimizers().optimizer

    def look(self, place: int) -> None:
        found = (self.trainer.optimizers, self.trainer.strategy.optimizers, self.trainer.lr_scheduler_configs)
        own = self.optimizers()
        for index, value in enumerate([*found, own if isinstance(own, list) else [own]]):
            self.note(place + index, len(value))


class Rebuilds(Plain):
    """Makes its optimizer anew on the way."""

    def on_train_epoch_start(self) -> None:
        if self.how == "setup_optimizers":
            self.trainer.strategy.setup_optimizers(self.trainer)
        else:
            where = self.trainer if self.how == "trainer" else self.trainer.strategy
            where.optimizers = [torch.optim.SGD(self.parameters(), lr=0.1)]


class InPrecision(Noting):
    """Notes the precision of each hook, and computes in it."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.automatic_optimization = how != "by hand"

    def see(self, place: int) -> None:
        product = torch.rand(3, 3, device=self.device) @ torch.rand(3, 3, device=self.device)
        bits = torch.finfo(product.dtype).bits + torch.finfo(torch.get_default_dtype()).bits / 1024
        self.note(place, bits)

    def configure_model(self) -> None:
        self.see(0)
        if not hasattr(self, "late"):
            self.late = nn.Linear(3, 3)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.see(1)
        return batch

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        self.see(2)
        return batch

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.see(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        self.see(4)
        x, y = batch
        loss = F.cross_entropy(self.late(self.model(x)), y)
        if self.how == "by hand":
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
        return loss

    def on_before_backward(self, loss: torch.Tensor) -> None:
        self.see(5)

    def on_after_backward(self) -> None:
        self.see(6)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.see(7)

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.see(8)

    def on_validation_batch_start(self, batch: Any, batch_idx: int) -> None:
        self.see(9)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.see(10)
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.late(self.model(x)), y))

    def on_validation_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.see(11)

    def on_validation_epoch_start(self) -> None:
        self.see(12)

    def on_train_epoch_start(self) -> None:
        self.see(13)
