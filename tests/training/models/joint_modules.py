"""LightningModules whose steps may run once for all members, and such whose steps only look as if."""

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from tests.training.models.lightning_modules import Plain

SEEN: list[int] = []


def focal(out: torch.Tensor, y: torch.Tensor, gamma: float = 2.0) -> torch.Tensor:
    log = F.log_softmax(out, 1)
    picked = log.gather(1, y[:, None]).squeeze(1)
    return -((1 - picked.exp()) ** gamma * picked).mean()


class Helpers(Plain):
    """A loss by a function, one by a layer, and a method of its own."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]), label_smoothing=0.1)

    def both(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return 0.5 * focal(out, y) + 0.5 * self.criterion(out, y)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = self.both(self.model(x), y)
        self.log_dict({"train_loss": loss, "batches": batch_idx, "ones": y.float().mean()}, on_epoch=True)
        return {"loss": loss, "more": y}


class Measures(Plain):
    """Metrics of training and of validation, two calls of the model, and an output that is written into."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.train_accuracy = MulticlassAccuracy(3)
        self.accuracy, self.f1 = MulticlassAccuracy(3, average="micro"), MulticlassF1Score(3)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out, other = self.model(x), self.model(x)
        out.div_(1.5)
        self.train_accuracy.update(out, y)
        self.log("train_accuracy", self.train_accuracy)
        loss = F.cross_entropy(out, y) + 0.1 * F.mse_loss(other, out.detach())
        self.log("train_loss", loss)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        out = self.model(x)
        self.log("val_loss", F.cross_entropy(out, y))
        self.log("batch_accuracy", self.accuracy(out, y))
        self.f1(out, y)
        self.log_dict({"val_accuracy": self.accuracy, "val_f1": self.f1})


class SkipsSome(Plain):
    """No loss for some batches, and gradients of nothing in others' steps."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if batch_idx % 3 == 1:
            return None
        with torch.no_grad():
            self.model(batch[0])
        return super().training_step(batch, batch_idx)


class Diverges(Plain):
    """Its loss soon is not finite where the rate is far too high."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y) ** 2
        self.log("train_loss", loss)
        return loss


class Hyper(Plain):
    """What it reads is searched: the steps are others."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return self.lr * F.cross_entropy(self.model(x), y)


class LooksLater(Plain):
    """Looks at a value, from the second epoch on."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        if self.current_epoch > 0 and loss > 1:
            return 2 * loss
        return loss


class Detaches(Plain):
    """Its loss does not depend on its model, from the second epoch on."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        return loss.detach() if self.current_epoch > 0 else loss


class LooksInValidation(Plain):
    """Looks at a value when it is validated."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("val_loss", loss if loss > 0.5 else 2 * loss)


class Collects(Plain):
    """Keeps its losses, and logs their number."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.losses: list[torch.Tensor] = []

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.losses.append(loss.detach())
        self.log("steps", float(len(self.losses)))
        return loss


class Global(Plain):
    """Counts the steps of all."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        SEEN.append(batch_idx)
        return super().training_step(batch, batch_idx)


class Prints(Plain):
    """Says what it does."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        print("a step of", self.lr)
        return super().training_step(batch, batch_idx)


class Drops(Plain):
    """Draws from its own stream within the step."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        return F.cross_entropy(F.dropout(self.model(x), 0.2), y)


class Penalizes(Plain):
    """A penalty of the gradient of its loss with regard to the outputs."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        out = self.model(x)
        loss = F.cross_entropy(out, y)
        (gradient,) = torch.autograd.grad(loss, out, create_graph=True)
        return loss + gradient.square().sum()
