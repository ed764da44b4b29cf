"""LightningModules whose joint steps are run as recorded, and such whose steps look as if they could be."""

from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy
from torchmetrics.image import PeakSignalNoiseRatio

from tests.training.models.lightning_modules import Plain

WEIGHT = 1.0


def weighted(loss: torch.Tensor) -> torch.Tensor:
    return WEIGHT * loss


class Base(Plain):
    """Takes no index in validation, and reads none in training."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y))


class Measured(Base):
    """Metrics in training and validation, one of them of several states, and an output that is written into."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.train_accuracy = MulticlassAccuracy(3, average="micro")
        self.accuracy = MulticlassAccuracy(3, average="micro")

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        out.div_(1.5)
        self.train_accuracy(out, y)
        self.log("train_accuracy", self.train_accuracy)
        return F.cross_entropy(out, y, label_smoothing=0.1)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        out = self.model(x)
        self.log("batch_accuracy", self.accuracy(out, y))
        self.log_dict({"val_accuracy": self.accuracy, "val_loss": F.cross_entropy(out, y)})


class MeasuredByRow(Base):
    """A metric that looks at values, and one that is a mean of its updates."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.mean, self.noise = torchmetrics.MeanMetric(), PeakSignalNoiseRatio(data_range=2.0)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        out = self.model(x)
        self.mean.update(F.log_softmax(out, 1).max(1).values)
        self.noise.update(out, torch.ones_like(out))
        self.log_dict({"val_mean": self.mean, "val_loss": F.cross_entropy(out, y), "noise": self.noise})


class ByEpoch(Base):
    """Its loss depends on the epoch."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y) / (1 + self.current_epoch)


class ByHook(Base):
    """Its loss depends on what a hook sets before each epoch."""

    weight: float = 1.0

    def on_train_epoch_start(self) -> None:
        self.weight = 1.0 + self.current_epoch

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return self.weight * F.cross_entropy(self.model(x), y)


class ByGlobal(Base):
    """Its loss depends on a name of its file that a hook sets before each epoch, and a function reads."""

    def on_train_epoch_start(self) -> None:
        globals()["WEIGHT"] = 1.0 + self.current_epoch

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return weighted(F.cross_entropy(self.model(x), y))


class ByLayer(Base):
    """Its loss has weights that a hook changes before each epoch."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))

    def on_train_epoch_start(self) -> None:
        self.criterion.weight.mul_(1.5)  # type: ignore[union-attr]

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return self.criterion(self.model(x), y)


class ByMode(Base):
    """Its loss is another one in later epochs, by an attribute that is text."""

    def on_train_epoch_start(self) -> None:
        self.how = "squared" if self.current_epoch else ""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        return loss.square() if self.how == "squared" else loss


class ByIndex(Base):
    """Its loss depends on the index of the batch."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y) / (1 + batch_idx)


class ByPositions(Base):
    """As `ByIndex`, with arguments that have no names."""

    def training_step(self, *args: Any) -> Any:
        (x, y), index = args
        return F.cross_entropy(self.model(x), y) / (1 + index)


class BySize(Base):
    """Its loss depends on the size of the batch."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y) * (2.0 if len(x) < 16 else 1.0)


class ByContent(Base):
    """Its loss depends on the values of the batch."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        return 2 * loss if x.mean() > 0 else loss


class Views(Base):
    """Its model reads the batch in another shape, and the targets are computed."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x.view(-1, x.shape[-1]))
        target = (y[:, None] == torch.arange(3)).to(out.dtype) * 0.9 + 0.03
        return -(target * F.log_softmax(out, dim=-1)).sum(-1).mean()


class WritesTargets(Base):
    """Writes into what it is given, after its model has read the rest."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        y.clamp_(max=1)
        return F.cross_entropy(out, y)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        x.mul_(0.5)
        self.log("val_loss", F.cross_entropy(self.model(x), y))


class WritesViews(Base):
    """Its model reads in validation what is written by way of a view."""

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        x.view(-1).mul_(0.5)
        self.log("val_loss", F.cross_entropy(self.model(x), y))


class Normalizes(Base):
    """Its model reads in validation what is computed from the batch."""

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model((x - x.mean()) / x.std()), y))


class Detached(Base):
    """A part of its loss has no gradient."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        with torch.no_grad():
            worst = F.cross_entropy(out, y, reduction="none").max()
        return F.cross_entropy(out, y) / (1 + worst) + out.detach().square().mean()


class WithoutGradients(Base):
    """Its model runs without gradients, and so its loss has none, in some batches."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        with torch.set_grad_enabled(len(x) >= 16):
            out = self.model(x)
        return F.cross_entropy(out, y)


class Softly(Base):
    """Softmax and log-softmax over other dimensions, and of numbers that are not finite."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        masked = out.masked_fill((y[:, None] + 1) % 3 == torch.arange(3), float("-inf"))
        return F.nll_loss(F.log_softmax(masked, 1), y) + F.log_softmax(out, 0).square().mean() + out.softmax(0).var()
