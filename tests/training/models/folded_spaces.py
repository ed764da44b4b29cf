"""Data of one fold, split by scikit-learn and not by nasflow."""

import signal
from collections.abc import Iterator
from typing import Any

import torch
from sklearn.model_selection import StratifiedKFold
from torch.utils.data import DataLoader, Subset

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.seeds import derive_seed
from tests.training.models.spaces import Augmented, TakenBack, TransferAugmented, rows

SEED = 5
"""Of the order of batches, as in `make_job`."""


def parts(labels: torch.Tensor, folds: int) -> list[tuple[list[int], list[int]]]:
    """The numbers of the samples that each fold trains on, and of those that it validates on."""
    splitter = StratifiedKFold(folds, shuffle=True, random_state=derive_seed(SEED, "folds") % 2**32)
    return [(train.tolist(), validation.tolist()) for train, validation in splitter.split(labels, labels)]


def tensors(part: int, of: int, shuffle: bool = True) -> tuple[TensorLoader, TensorLoader]:
    """One fold of `spaces.py:blobs`, in batches of 21, of which folds have 2 or 3."""
    x, y = (tensor[:64] for tensor in rows())
    train, validation = parts(y, of)[part]
    return TensorLoader((x[train], y[train]), 21, shuffle), TensorLoader((x[validation], y[validation]), 21)


def whole_samples() -> DataLoader[Any]:
    """In batches of 13, of which folds have 2 or 3; has no validation data."""
    dataset = Augmented()
    dataset.targets = dataset.y  # type: ignore[attr-defined]
    return DataLoader(dataset, 13, shuffle=True)


def samples(part: int, of: int) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """One fold of these."""
    dataset = Augmented()
    train, validation = parts(dataset.y, of)[part]
    return DataLoader(Subset(dataset, train), 13, shuffle=True), DataLoader(Subset(dataset, validation), 13)


class OneTransferAugmented(TransferAugmented):
    """One fold of a data module."""

    def __init__(self, part: int, of: int, batch_size: int = 21):
        super().__init__(batch_size)
        self.part, self.of = part, of

    def setup(self, stage: str) -> None:
        x, y = (tensor[:64] for tensor in rows())
        self.parts = [(x[numbers], y[numbers]) for numbers in parts(y, self.of)[self.part]]

    def train_dataloader(self) -> TensorLoader:
        return TensorLoader(self.parts[0], self.batch_size, shuffle=True)

    def val_dataloader(self) -> TensorLoader:
        return TensorLoader(self.parts[1], self.batch_size)


class OwnFolds(OneTransferAugmented):
    """Splits its data itself."""

    def __init__(self, fold: int, folds: int):
        super().__init__(fold, folds)


class TakenBackAtTheEnd(TakenBack):
    """After the last batch of a pass, which is asked for before that batch is trained on."""

    def __iter__(self) -> Iterator[Any]:
        yield from super().__iter__()
        if self.passes == self.passed and not self.marker.exists():
            self.marker.touch()
            signal.raise_signal(signal.SIGTERM)


def taken_back(fold: int, folds: int, marker: str, at_the_end: bool) -> tuple[Any, Any]:
    """The process of a job is asked to end in the second epoch, at the end when another fold has no more batches."""
    train, validation = samples(fold, folds)
    how = TakenBackAtTheEnd if at_the_end else TakenBack
    return (how(train, marker, 1, -1 if at_the_end else 2) if len(train) == 3 else train), validation
