"""LightningModules of strangers, whose steps depend on more than it seems, or on less."""

import functools
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from torchmetrics import classification

from nasflow.evaluator.loading.loaders import TensorLoader
from tests.training.models.recorded_modules import Base
from tests.training.models.spaces import rows

SCALE = 1.0


def scaled(loss: torch.Tensor, scale: float = 1.0) -> torch.Tensor:
    return scale * loss


def mean_of(loss: torch.Tensor) -> torch.Tensor:
    return loss * mean_of.scale


mean_of.scale = 1.0


@functools.wraps(F.cross_entropy)
def cross_entropy(*args: Any, **options: Any) -> torch.Tensor:
    return SCALE * F.cross_entropy(*args, **options)


class Unlabeled(TensorLoader):
    """Some targets of some batches are missing."""

    def __iter__(self) -> Iterator[Any]:
        for index, (x, y) in enumerate(super().__iter__()):
            there = torch.arange(len(y)) >= index * 3
            yield x, torch.where(there, y, -100)


def unlabeled(batch_size: int = 16) -> tuple[Any, Any]:
    x, y = rows()
    return Unlabeled((x[:64], y[:64]), batch_size), Unlabeled((x[64:], y[64:]), 8)


class ByClass(Base):
    """A class attribute, by way of `self.__class__`."""

    scale = 1.0

    def on_train_epoch_start(self) -> None:
        type(self).scale = 1.0 + self.current_epoch

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return self.__class__.scale * F.cross_entropy(self.model(x), y)


class ByClassMethod(ByClass):
    """A class attribute, by way of a class method."""

    @classmethod
    def weigh(cls, loss: torch.Tensor) -> torch.Tensor:
        return cls.scale * loss

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return self.weigh(F.cross_entropy(self.model(x), y))


class ByClassPlain(ByClass):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return self.scale * F.cross_entropy(self.model(x), y)


class Inherited(Base):
    def on_train_epoch_start(self) -> None:
        globals()["SCALE"] = 1.0 + self.current_epoch

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return SCALE * F.cross_entropy(self.model(x), y)


class ByParent(Inherited):
    """What its parent's step reads."""

    def training_step(self, batch: Any) -> Any:
        return super().training_step(batch) * 2


class ByParentsAttribute(ByClass):
    """A class attribute of its parent."""

    scale = 5.0

    def on_train_epoch_start(self) -> None:
        ByClass.scale = 1.0 + self.current_epoch

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return super().scale * F.cross_entropy(self.model(x), y)


class ByWrapped(Inherited):
    """A function that says that it is one of torch."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return cross_entropy(self.model(x), y)


class ByDefault(Base):
    """The defaults of a function."""

    def on_train_epoch_start(self) -> None:
        scaled.__defaults__ = (1.0 + self.current_epoch,)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return scaled(F.cross_entropy(self.model(x), y))


class ByFunctionAttribute(Base):
    """An attribute of a function."""

    def on_train_epoch_start(self) -> None:
        mean_of.scale = 1.0 + self.current_epoch

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return mean_of(F.cross_entropy(self.model(x), y))


class ByTuple(Base):
    """A tuple whose numbers are equal, and of another type."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.powers = (2, 1)

    def on_train_epoch_start(self) -> None:
        self.powers = (2.0, 1.0) if self.current_epoch == 1 else (2, 1)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        how = torch.tensor(self.powers)
        return F.cross_entropy(self.model(x), y) * (2 if how.is_floating_point() else 1)


class ByZero(Base):
    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.zero = 0.0

    def on_train_epoch_start(self) -> None:
        self.zero = -0.0 if self.current_epoch == 1 else 0.0

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        sign = torch.copysign(torch.tensor(0.5), torch.tensor(self.zero))
        return F.cross_entropy(self.model(x), y) * (1 + sign)


class ByDtype(Base):
    def on_train_epoch_start(self) -> None:
        torch.set_default_dtype(torch.float64 if self.current_epoch == 1 else torch.float32)

    def on_train_epoch_end(self) -> None:
        torch.set_default_dtype(torch.float32)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y) * torch.tensor(1 / 3)


class Counts(Base):
    """The number of targets that are there, by their shape."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        count = len(y[y != 1])
        return F.cross_entropy(self.model(x), y, reduction="sum") / (1 + count)


class CountsUnique(Base):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        count = len(torch.unique((x[:, 0] * 2).round()))
        return F.cross_entropy(self.model(x), y, reduction="sum") / (1 + count)


class Lists(Base):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y) * sum(y.tolist())


class Numpy(Base):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y) * float(y.numpy().sum())


class Text(Base):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y) * len([one for one in f"{y}" if one == "1"])


class Masks(Base):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        there = y != -100
        return F.cross_entropy(self.model(x)[there], y[there])

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        there = y != -100
        self.log("val_loss", F.cross_entropy(self.model(x)[there], y[there]), batch_size=1)


class MasksMean(Masks):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        return F.cross_entropy(out, y) + out[y != -100].square().mean()


class Ignores(Masks):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return F.cross_entropy(self.model(x), y)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y, reduction="none", ignore_index=-100)
        self.log("val_loss", loss.sum() / (y != -100).sum(), batch_size=1)


class Specific(Base):
    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.specificity = classification.MulticlassSpecificity(3, average="micro", ignore_index=-100)
        self.accuracy = classification.MulticlassAccuracy(3, average="macro", ignore_index=-100)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        self.specificity(out, y)
        self.accuracy.update(out, y)
        self.log_dict({"specificity": self.specificity, "accuracy": self.accuracy})
        return F.cross_entropy(out, y)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        out = self.model(x)
        self.specificity(out, y)
        self.log("val_loss", F.cross_entropy(out, y), batch_size=1)
        self.log("val_specificity", self.specificity)


class Weighs(Base):
    """A batch size that is a tensor."""

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        self.log("val_loss", F.cross_entropy(self.model(x), y), batch_size=(y == 1).sum() + 1)


class Decays(Base):
    """Changes the weights of its loss in each step."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        self.criterion.weight.pow_(0.9)
        return self.criterion(self.model(x), y)


class Swallows(Base):
    """Looks at its loss, and goes on whatever comes of it."""

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        factor = 1.0
        try:
            if loss > 1.0:
                factor = 0.5
        except RuntimeError:
            pass
        return loss * factor


class SwallowsLater(Base):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        factor = 1.0
        if self.current_epoch > 0:
            try:
                factor = float(loss)
            except:  # noqa: E722
                factor = 3.0
        return loss * factor


class ByEpochRaises(Base):
    def training_step(self, batch: Any) -> Any:
        x, y = batch
        if self.current_epoch == 1:
            raise ValueError("no more")
        return F.cross_entropy(self.model(x), y)


class Rises(Base):
    """Loss weights that alternate in place."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))

    def on_train_epoch_start(self) -> None:
        self.criterion.weight[0] = 1.0 + self.current_epoch % 2

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return self.criterion(self.model(x), y)


REDUCE = F.l1_loss


class ByRebound(Base):
    """A name of its file, which is another function of torch later."""

    def on_train_epoch_start(self) -> None:
        globals()["REDUCE"] = F.mse_loss if self.current_epoch == 1 else F.l1_loss

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return REDUCE(self.model(x), F.one_hot(y, 3).to(x.dtype))


class Config(NamedTuple):
    rate: float

    def weigh(self, loss: torch.Tensor) -> torch.Tensor:
        return SCALE * self.rate * loss


class ByNamedTuple(Inherited):
    """A method of a value that is otherwise plain."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr, how)
        self.config = Config(0.5)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return self.config.weigh(F.cross_entropy(self.model(x), y))
