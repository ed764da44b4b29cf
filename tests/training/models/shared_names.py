"""LightningModules that log one name in several places, and batches that are neither tensors nor lists of them."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.nn import functional as F

from tests.training.models.lightning_modules import Plain
from tests.training.models.spaces import ordered


class SharedStep(Plain):
    """Logs the same names in training, in validation, and in the hook after it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        x, y = batch
        loss = F.cross_entropy(self.model(x), y)
        self.log("loss", loss)
        self.log("score", loss * 2)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> Any:
        return self.training_step(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        self.log("score", next(self.parameters()).abs().max())


class Pairs:
    """A batch of a library's own kind, as of graphs: it gives its names and tensors one after the other."""

    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        self.x, self.y = x, y

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        yield from vars(self).items()


class TakesPairs(Plain):
    """Takes such batches."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        return super().training_step((batch.x, batch.y), batch_idx)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        super().validation_step((batch.x, batch.y), batch_idx)


def pairs() -> tuple[list[Pairs], list[Pairs]]:
    """Batches for training and validation, of which the last is smaller."""
    train, validation = ordered()
    batches = [[Pairs(x, y) for x, y in part] for part in (train, validation)]
    last = batches[1][-1]
    batches[1].append(Pairs(last.x[:2] * 3, last.y[:2]))
    return batches[0], batches[1]
