"""LightningModules and callbacks of strangers."""

from argparse import Namespace
from typing import Any

import torch
from pytorch_lightning import Callback, LightningModule
from torch import nn
from torch.nn import functional as F

from nasflow.space.pick import Pick


def dropping(pick: Pick) -> nn.Module:
    width = pick("width", [4, 5])
    return nn.Sequential(nn.Linear(6, width), nn.Dropout(0.2), nn.Linear(width, 3))


def normed(pick: Pick) -> nn.Module:
    width = pick("width", [4, 5])
    return nn.Sequential(nn.Linear(6, width, bias=False), nn.BatchNorm1d(width), nn.Tanh(), nn.Linear(width, 3))


class Masked(nn.Linear):
    """A layer with a mask of its weights, which may be known to its parent only."""

    def __init__(self, *sizes: int):
        super().__init__(*sizes)
        self.register_buffer("mask", torch.ones_like(self.weight))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight * self.mask, self.bias)


class Counting(nn.Module):
    """Puts another tensor in the place of a buffer in each forward; its scale is read from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("scale", torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return x / (1 + 0.1 * self.count)


class Scaled(nn.Module):
    """Reads a buffer of a part, and a temperature of an object."""

    def __init__(self, counts: bool = True):
        super().__init__()
        self.part = Counting() if counts else nn.Tanh()
        self.settings = Namespace(inner=Namespace(temperature=1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.part(x) / self.settings.inner.temperature
        return y * self.part.scale if isinstance(self.part, Counting) else y


class Adapted(nn.Module):
    """Adds its adapter to the frozen weights in evaluation mode, as libraries for LoRA do."""

    def __init__(self, width: int):
        super().__init__()
        self.base, self.is_merged = nn.Linear(6, width).requires_grad_(False), False
        self.down, self.up = nn.Parameter(torch.rand(2, 6)), nn.Parameter(torch.rand(width, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        return y if self.is_merged else y + x @ self.down.T @ self.up.T

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        if mode is self.is_merged:
            self.base.weight.data += (-1 if mode else 1) * (self.up @ self.down)
            self.is_merged = not mode
        return self


class Recorder:
    """Keeps what a layer gives, as a forward hook."""

    def __init__(self) -> None:
        self.last: torch.Tensor | None = None
        self.norms: list[float] = []

    def __call__(self, layer: nn.Module, given: Any, output: torch.Tensor) -> None:
        self.last = output
        self.norms.append(len(output))


class Recorded(nn.Module):
    """Has a recorder of one of its layers."""

    def __init__(self, width: int):
        super().__init__()
        self.first, self.second, self.recorder = nn.Linear(6, width), nn.Linear(width, 3), Recorder()
        self.first.register_forward_hook(self.recorder)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(torch.tanh(self.first(x)))


class MonteCarlo(nn.Module):
    """Draws in validation as well."""

    def __init__(self, width: int):
        super().__init__()
        self.body, self.drop, self.head = nn.Linear(6, width), nn.Dropout(0.2), nn.Linear(width, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.drop(torch.tanh(self.body(x))))

    def train(self, mode: bool = True) -> Any:
        super().train(mode)
        self.drop.train()
        return self


class Skips(nn.Module):
    """Passes its input on in most steps."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) if self.training and float(torch.rand(())) < 0.3 else x


class Skipping(nn.Module):
    """A branch without a gradient in some steps."""

    def __init__(self, width: int):
        super().__init__()
        self.body, self.branch, self.head = nn.Linear(6, width), nn.Linear(width, width), nn.Linear(width, 3)
        self.skips = Skips()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.body(x))
        return self.head(y + self.skips(torch.tanh(self.branch(y))))


def convolving(pick: Pick) -> nn.Module:
    width = pick("width", [4, 5])
    first = nn.Sequential(nn.Unflatten(1, (1, 2, 3)), nn.Conv2d(1, 4, 2), nn.ReLU(), nn.Conv2d(4, width, (1, 2)))
    return nn.Sequential(first, nn.Flatten(), nn.Linear(width, 3))


def adapted(pick: Pick) -> nn.Module:
    width = pick("width", [4, 5])
    return nn.Sequential(Adapted(width), nn.Tanh(), nn.Linear(width, 3))


def recorded(pick: Pick) -> nn.Module:
    return Recorded(pick("width", [4, 5]))


def monte_carlo(pick: Pick) -> nn.Module:
    return MonteCarlo(pick("width", [4, 5]))


def skipping(pick: Pick) -> nn.Module:
    return Skipping(pick("width", [4, 5]))


def masked(pick: Pick) -> nn.Module:
    width = pick("width", [4, 5])
    return nn.Sequential(Masked(6, width), nn.Tanh(), nn.Linear(width, 3))


def counted(pick: Pick) -> nn.Module:
    width = pick("width", [4, 5])
    return nn.Sequential(nn.Linear(6, width), Scaled(), nn.Linear(width, 3))


def tempered(pick: Pick) -> nn.Module:
    width = pick("width", [4, 5])
    return nn.Sequential(nn.Linear(6, width), Scaled(counts=False), nn.Linear(width, 3))


class Plain(LightningModule):
    """Cross-entropy, as in every tutorial."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__()
        self.model, self.lr, self.how = model, lr, how

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y))

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


class Trains(Plain):
    """Goes back to training mode by itself."""

    def on_train_epoch_start(self) -> None:
        self.train()


class Samples(Plain):
    """Draws in validation."""

    def validation_step(self, batch: Any) -> None:
        self.model[1].train()
        super().validation_step(batch)


class Returns(Plain):
    """Returns what is no loss."""

    def training_step(self, batch: Any) -> Any:
        loss = super().training_step(batch)
        out, y = self.model(batch[0]), batch[1]
        found: dict[str, Any] = {
            "a float": loss.item(),
            "a tuple": (loss, loss),
            "of each sample": F.cross_entropy(out, y, reduction="none"),
            "another name": {"train_loss": loss},
            "a float in a dict": {"loss": loss.item()},
            "detached": {"loss": loss.detach()},
            "a count": (out.argmax(1) != y).sum(),
        }
        return found[self.how]


class Logs(Plain):
    """Logs what is no number."""

    def training_step(self, batch: Any) -> Any:
        values = {"a vector": torch.zeros(3), "a text": "low", "nothing": None, "a dict": {"a": 1.0}}
        self.log("seen", values[self.how])
        return super().training_step(batch)


class Scheduled(Plain):
    """Gives schedules that are none."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return {
            "by batch": lambda: {
                "optimizer": optimizer,
                "lr_scheduler": {"scheduler": schedule, "interval": "batch"},
            },
            "misspelt": lambda: {"optimizer": optimizer, "lr_scheduler": {"schedular": schedule}},
            "never": lambda: ([optimizer], [{"scheduler": schedule, "frequency": 0}]),
            "a class": lambda: ([optimizer], [torch.optim.lr_scheduler.StepLR]),
            "unread": lambda: {"optimizer": optimizer, "lr_schedule": schedule},
        }[self.how]()


class OneCycle(Plain):
    """A schedule that changes Adam's betas as well."""

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        steps = int(self.trainer.estimated_stepping_batches)
        return [optimizer], [
            {"scheduler": torch.optim.lr_scheduler.OneCycleLR(optimizer, self.lr, steps), "interval": "step"}
        ]


class Curriculum(Plain):
    """Python attributes that training depends on, in the checkpoint by hooks."""

    seen = 0
    recent: tuple[float, ...] = ()

    def training_step(self, batch: Any) -> Any:
        self.seen += 1
        self.recent = (*self.recent, float(batch[0].mean()))[-5:]
        return super().training_step(batch) * (1 + 0.1 * self.seen) + sum(self.recent)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        checkpoint["curriculum"] = [self.seen, list(self.recent)]

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.seen, self.recent = checkpoint["curriculum"][0], tuple(checkpoint["curriculum"][1])


class Tied(Plain):
    """Two layers with one weight, a buffer that the step moves, and a head whose size the first batch tells."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.one, self.two, self.head = nn.Linear(3, 3), nn.Linear(3, 3, bias=False), nn.LazyLinear(3)
        self.two.weight = self.one.weight
        self.register_buffer("centre", torch.zeros(3))

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.two(self.one(self.model(x)).tanh())
        self.centre = 0.9 * self.centre.to(out) + 0.1 * out.detach().mean(0)
        return F.cross_entropy(self.head(out - self.centre), y)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.head(self.two(self.one(self.model(x)).tanh())), y))


class Sharp(Plain):
    """Sharpness-aware steps."""

    def __init__(self, *args: Any, **options: Any):
        super().__init__(*args, **options)
        self.automatic_optimization = False

    def training_step(self, batch: Any) -> Any:
        optimizer: Any = self.optimizers()
        loss = super().training_step(batch)
        self.manual_backward(loss)
        away = [0.05 * parameter.grad for parameter in self.model.parameters()]
        with torch.no_grad():
            torch._foreach_add_(list(self.model.parameters()), away)
        optimizer.zero_grad()
        self.manual_backward(super().training_step(batch))
        with torch.no_grad():
            torch._foreach_sub_(list(self.model.parameters()), away)
        optimizer.step()
        optimizer.zero_grad()
        return loss


class Changes(Callback):
    """Changes the model on the way, as a recipe with its own schedule does."""

    def __init__(self, how: str):
        self.how = how

    def on_train_epoch_start(self, trainer: Any, module: Any) -> None:
        epoch, layers = trainer.current_epoch, module.model
        match self.how:
            case "dropout":
                layers[1].p = 0.1 * epoch
            case "mode" if epoch >= 1:
                layers[1].eval()
            case "momentum":
                layers[1].momentum = 0.5 / (1 + epoch)
            case "layer" if epoch == 1:
                layers[1] = nn.Dropout(0.7)
            case "parameter" if epoch == 1:
                layers[-1].weight = nn.Parameter(0.5 * layers[-1].weight.detach())
            case "frozen":
                layers[0].requires_grad_(epoch < 1)
            case "optimizer" if epoch == 1:
                trainer.optimizers[0].state.clear()
            case "rate":
                trainer.optimizers[0].param_groups[0]["lr"] *= 0.5
            case "restarted" if epoch == 1:
                for state in trainer.optimizers[0].state.values():
                    for value in state.values():
                        value.zero_()
            case "weights" if epoch == 1:
                layers[-1].reset_parameters()

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        if self.how == "gradients as rows" and trainer.current_epoch:
            for parameter in module.parameters():
                parameter.grad.view(-1).clamp_(-0.1, 0.1)

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        if self.how == "weights as rows":
            nn.utils.vector_to_parameters(0.9 * nn.utils.parameters_to_vector(module.parameters()), module.parameters())
        layers = module.model
        match self.how:
            case "clipped":
                for parameter in module.parameters():
                    parameter.data.clamp_(-0.3, 0.3)
            case "mask":
                layers[0].mask = (layers[0].weight.abs() > 0.2).to(layers[0].weight)
            case "scale":
                layers[1].part.scale = 2 * layers[1].part.scale
            case "temperature":
                layers[1].settings.inner.temperature = 2.0 + trainer.current_epoch

    def on_train_start(self, trainer: Any, module: Any) -> None:
        if self.how == "temperature":
            module.model[1].settings.inner.temperature = 1.0 + trainer.current_epoch

    def on_validation_epoch_start(self, trainer: Any, module: Any) -> None:
        if self.how == "sampled":  # as Monte Carlo dropout does
            module.model[1].train()
