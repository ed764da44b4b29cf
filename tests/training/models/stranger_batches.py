"""Batches, losses and hooks of strangers, for steps that could run once for all members."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.evaluator.loading.loaders import TensorLoader
from tests.training.models.recorded_modules import Base
from tests.training.models.spaces import rows


class Pair(NamedTuple):
    x: torch.Tensor
    y: torch.Tensor


class Changed(TensorLoader):
    """Batches as `change` makes them of `x`, `y` and their index."""

    def __init__(self, change: Callable[[torch.Tensor, torch.Tensor, int], Any], *args: Any):
        super().__init__(*args)
        self.change = change

    def __iter__(self) -> Iterator[Any]:
        for index, (x, y) in enumerate(super().__iter__()):
            yield self.change(x, y, index)


def laid_out(x: torch.Tensor, y: torch.Tensor, index: int) -> Any:
    """As transposed, as a slice of a larger one, or plain."""
    wide = torch.cat([x, x], 1)
    return [x.t().contiguous().t(), wide[:, : x.shape[1]], x, x[:1].expand(len(x), -1)][index % 4], y


def aliased(x: torch.Tensor, y: torch.Tensor, index: int) -> Any:
    weight = x[:, 0] if index % 2 else x[:, 0].clone()
    return x, y, weight


def made(how: str) -> tuple[Any, Any]:
    x, y = rows()
    size, change = {
        "layouts": (8, laid_out),
        "aliases": (16, aliased),
        "ids": (16, lambda x, y, i: {"x": x, "y": y, "id": f"batch-{i}-{float(x.sum()):.3f}", "none": None}),
        "numbers": (16, lambda x, y, i: (x, y, float(i))),
        "named": (16, lambda x, y, i: Pair(x, y)),
        "nested": (16, lambda x, y, i: ((x, {"y": [y]}), "text")),
        "one": (21, lambda x, y, i: (x, y)),
        "sparse": (16, lambda x, y, i: (x, y, torch.eye(len(x), dtype=x.dtype).to_sparse())),
        "soft": (16, lambda x, y, i: (x, F.one_hot(y, 3).to(x.dtype) * 0.9 + 0.1 / 3)),
        "sizes": (16, lambda x, y, i: (x[: 16 - i], y[: 16 - i])),
        "dtypes": (16, lambda x, y, i: (x, y if i % 2 else y.to(torch.int32))),
        "nans": (16, lambda x, y, i: (x, torch.where(y == i % 3, float("nan"), y.to(x.dtype)))),
        "numpy": (16, lambda x, y, i: (x, y, y.numpy())),
        "scalar": (16, lambda x, y, i: (x, y, torch.tensor(1.0 + i))),
    }[how]
    return Changed(change, (x[:64], y[:64]), 4 if how == "sizes" else size, True), Changed(
        change, (x[64:], y[64:]), size
    )


class Takes(Base):
    """Takes `x`, `y` and more out of batches of any kind."""

    def taken(self, batch: Any) -> Any:
        if isinstance(batch, dict):
            return batch["x"], batch["y"], ()
        if isinstance(batch[0], tuple):
            return batch[0][0], batch[0][1]["y"][0], ()
        return batch[0], batch[1], batch[2:]

    def loss(self, out: torch.Tensor, y: torch.Tensor, more: Any) -> torch.Tensor:
        if y.dtype == torch.int32:
            return 2 * F.cross_entropy(out, y.long())
        if y.is_floating_point() and y.ndim == 1:
            error = torch.where(y.isnan(), 0.0, (out[:, 0] - y).square())
            return error.sum() / (~y.isnan()).sum()
        loss = F.cross_entropy(out, y)
        if more and isinstance(more[0], float):
            return loss * more[0]
        if more and isinstance(more[0], torch.Tensor) and more[0].layout == torch.sparse_coo:
            return loss + torch.sparse.mm(more[0], out).square().mean()
        if more and isinstance(more[0], torch.Tensor) and more[0].is_floating_point():
            more[0].mul_(0.5)
            loss = loss * (1 + more[0].square().mean())
        return loss

    def training_step(self, batch: Any) -> Any:
        x, y, more = self.taken(batch)
        loss = self.loss(self.model(x), y, more)
        self.log("train_loss", loss)
        return {"loss": loss + x.square().mean(), "x": x}

    def validation_step(self, batch: Any) -> None:
        x, y, more = self.taken(batch)
        self.log("val_loss", self.loss(self.model(x), y, more))


class Losses(Base):
    """A loss of each kind."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr)
        self.kind = how
        self.margin = nn.MultiMarginLoss(weight=torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
        self.smooth = nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=1, reduction="sum")

    def loss(self, out: torch.Tensor, y: torch.Tensor) -> torch.Tensor:  # noqa: PLR0912 - a case for each kind
        target = F.one_hot(y, 3).to(out.dtype)
        kind = self.kind
        if kind == "bce":
            return F.binary_cross_entropy_with_logits(out, target, pos_weight=torch.tensor([1.0, 2.0, 3.0]))
        if kind == "huber":
            return F.huber_loss(out, target, delta=0.3)
        if kind == "kl":
            return F.kl_div(F.log_softmax(out, 1), target * 0.7 + 0.1, reduction="batchmean")
        if kind == "gaussian":
            return F.gaussian_nll_loss(out[:, 0], target[:, 0], F.softplus(out[:, 1]))
        if kind == "triplet":
            return F.triplet_margin_loss(out, out.roll(1, 0), out.roll(2, 0))
        if kind == "cosine":
            return F.cosine_embedding_loss(out, target, 1 - 2 * (y == 1).to(out.dtype))
        if kind == "contrastive":
            normal = F.normalize(out, dim=1)
            like = (normal @ normal.t()) / 0.5
            same = (y[:, None] == y) & ~torch.eye(len(y), dtype=torch.bool)
            like = like.masked_fill(torch.eye(len(y), dtype=torch.bool), float("-inf"))
            return -torch.where(same, F.log_softmax(like, 1), 0.0).sum(1).div(same.sum(1).clamp(min=1)).mean()
        if kind == "ctc":
            lines, size = F.log_softmax(out, 1)[:, None], torch.tensor([len(y)])
            return F.ctc_loss(lines, (y[None, :3] % 2) + 1, size, (y[:1] % 2) + 1)
        if kind == "poisson":
            return F.poisson_nll_loss(out, target, full=True)
        if kind == "margin":
            return self.margin(out, y)
        if kind == "smooth":
            return self.smooth(out, y)
        if kind == "sum":
            return out.sum()
        if kind == "cdist":
            return torch.cdist(out, out).mean() + torch.logsumexp(out, 0).sum()
        if kind == "sort":
            return (F.cross_entropy(out, y, reduction="none").sort(descending=True).values[: len(y) // 2]).mean()
        if kind == "topk":
            return F.cross_entropy(out, y, reduction="none").topk(3).values.mean() + out.median()
        if kind == "write":
            out[:, 0] += 1.0
            out[y == 1] *= 0.5
            return F.cross_entropy(out, y)
        if kind == "gather":
            return -F.log_softmax(out, 1)[torch.arange(len(y)), y].mean() + out.gather(1, y[:, None]).square().mean()
        if kind == "group":
            sums = torch.zeros(3, 3, dtype=out.dtype).index_add(0, y, out)
            return (sums / len(y)).tanh().square().mean() + F.cross_entropy(out, y)
        if kind == "grad":
            return F.cross_entropy(out, y) * (2.0 if torch.is_grad_enabled() and out.requires_grad else 1.0)
        return torch.zeros(()) if len(y) == 16 else F.cross_entropy(out, y)

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        return self.loss(self.model(x), y)

    def validation_step(self, batch: Any) -> None:
        x, y = batch
        loss = self.loss(self.model(x), y)
        self.log("val_loss", loss)
        self.log("weighted", loss, batch_size=3)


def scaled_by(rate: float) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda loss: rate * loss


class Hooks(Base):
    """Hooks that change what a step reads."""

    def __init__(self, model: nn.Module, lr: float = 0.05, how: str = ""):
        super().__init__(model, lr)
        self.kind, self.rate = how, 1.0

    def on_train_epoch_start(self) -> None:
        if self.kind == "frozen norm":
            self.model[1].eval()
        if self.kind == "attribute" and self.current_epoch:
            self.extra = 3.0
        if self.kind == "deleted" and self.current_epoch == 1:
            del self.rate

        if self.kind == "method":
            self.weigh = scaled_by(1.0 + self.current_epoch)

    def on_validation_epoch_start(self) -> None:
        if self.kind == "validation":
            self.rate += 0.5

    def on_train_epoch_end(self) -> None:
        if self.kind == "deleted":
            self.rate = 2.0

    def training_step(self, batch: Any) -> Any:
        x, y = batch
        out = self.model(x)
        loss = F.cross_entropy(out, y)
        if self.kind == "twice":
            self.log("x", loss)
            self.log("x", 2 * loss)
        if self.kind == "by epoch" and self.current_epoch % 2:
            self.log("odd", loss, reduce_fx="mean")
        if self.kind == "max":
            self.log("most", loss, reduce_fx="max")
        if self.kind == "method":
            loss = self.weigh(loss)
        if self.kind == "tuple":
            return loss, 1
        if self.kind == "raises" and self.current_epoch == 1 and len(x) < 16:
            raise RuntimeError("late")
        if self.kind == "negative":
            loss = (loss - 2.0 * self.current_epoch).log()
        return loss * self.rate * (self.extra if self.kind == "attribute" and self.current_epoch else 1.0)

    def configure_optimizers(self) -> Any:
        optimizer = super().configure_optimizers()
        if self.kind != "schedule":
            return optimizer
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, self.warm)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def warm(self, step: int) -> float:
        self.rate = 1.0 / (1 + step)
        return 1.0
