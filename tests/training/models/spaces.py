"""Spaces and data that the tests of the training room name as targets."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pytorch_lightning import LightningDataModule
from torch import nn
from torch.utils.data import DataLoader, Dataset

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.space.pick import Pick

# --- data --------------------------------------------------------------------------------------------------------


def rows(size: int = 90, features: int = 6, classes: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Overlapping clouds `[size, features]` around one centre a class, and their classes `[size]`."""
    generator = torch.Generator().manual_seed(7)
    centres = torch.randn(classes, features, generator=generator)
    labels = torch.arange(size) % classes
    return centres[labels] + torch.randn(size, features, generator=generator), labels


def blobs(batch_size: int = 16) -> tuple[TensorLoader, TensorLoader]:
    x, y = rows()
    return TensorLoader((x[:64], y[:64]), batch_size, shuffle=True), TensorLoader((x[64:], y[64:]), batch_size)


def unbalanced(batch_size: int = 16) -> tuple[TensorLoader, TensorLoader]:
    """Of class 0 more than of class 1, and of that more than of class 2."""
    x, y = rows(180)
    kept = torch.arange(len(y)) % 7 >= 2 * y
    x, y = x[kept], y[kept]
    return TensorLoader((x[:64], y[:64]), batch_size, shuffle=True), TensorLoader((x[64:], y[64:]), batch_size)


def images(batch_size: int = 16) -> tuple[TensorLoader, TensorLoader]:
    x, y = rows(features=36)
    x = x.reshape(-1, 1, 6, 6)
    return TensorLoader((x[:64], y[:64]), batch_size, shuffle=True), TensorLoader((x[64:], y[64:]), batch_size)


class Augmented(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Adds noise from all three generators to each sample, and marks each look-up in a file."""

    def __init__(self, size: int = 40, counter: str | None = None, pause: float = 0.0):
        self.x, self.y = rows(size)
        self.counter = counter
        self.pause = pause

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        if self.counter is not None:
            with Path(self.counter).open("ab") as file:
                file.write(b".")
        time.sleep(self.pause)
        noise = torch.rand(()) + float(np.random.rand()) + random.random()
        return self.x[index] + 0.1 * noise, self.y[index]


def augmented(
    workers: int = 0, counter: str | None = None, pause: float = 0.0, **options: Any
) -> tuple[DataLoader[Any], DataLoader[Any]]:
    train = DataLoader(Augmented(40, counter, pause), batch_size=8, shuffle=True, num_workers=workers, **options)
    return train, DataLoader(Augmented(16), batch_size=16)


class TakenBack:
    """A loader that sends its process SIGTERM once, before a batch of a pass, as on a node that is taken back."""

    def __init__(self, loader: Any, marker: str, passed: int, batch: int):
        self.loader, self.marker, self.passed, self.batch = loader, Path(marker), passed, batch
        self.passes = -1

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        self.passes += 1
        for index, batch in enumerate(self.loader):
            if (self.passes, index) == (self.passed, self.batch) and not self.marker.exists():
                self.marker.touch()
                signal.raise_signal(signal.SIGTERM)
            yield batch


def taken_back(marker: str, passed: int = 1, batch: int = 2, of: str = "augmented") -> tuple[Any, Any]:
    train, validation = {"augmented": augmented, "images": images}[of]()
    return TakenBack(train, marker, passed, batch), validation


def taken_back_in_validation(marker: str) -> tuple[Any, Any]:
    train, validation = augmented()
    return train, TakenBack(validation, marker, 1, 0)


class TransferAugmented(LightningDataModule):
    """Augments whole batches after their transfer, in training only, as GPU augmentation does."""

    def __init__(self, batch_size: int = 16):
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        self.x, self.y = rows()

    def train_dataloader(self) -> TensorLoader:
        return TensorLoader((self.x[:64], self.y[:64]), self.batch_size, shuffle=True)

    def val_dataloader(self) -> TensorLoader:
        return TensorLoader((self.x[64:], self.y[64:]), self.batch_size)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        if self.trainer.training:
            x = x + 0.5 * torch.randn_like(x) + float(np.random.rand())
        return x, y


class ByEpoch(TransferAugmented):
    """Scales batches by its Trainer's epoch; `asks` for the number of all epochs, too."""

    def __init__(self, asks: bool = False):
        super().__init__()
        self.asks = asks

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        x, y = batch
        epochs = self.trainer.max_epochs if self.asks else 4
        return x * (1 + self.trainer.current_epoch / epochs), y


def ordered(batch_size: int = 16) -> tuple[TensorLoader, TensorLoader]:
    """The blobs in the same order in every epoch."""
    x, y = rows()
    return TensorLoader((x[:64], y[:64]), batch_size), TensorLoader((x[64:], y[64:]), batch_size)


def both_shuffled() -> tuple[TensorLoader, TensorLoader]:
    return TensorLoader(rows(), 16, shuffle=True), TensorLoader(rows(), 16, shuffle=True)


def train_only() -> TensorLoader:
    return ordered()[0]


class Dicts(TensorLoader):
    """Gives its batches as dicts."""

    def __iter__(self) -> Iterator[Any]:
        return ({"x": x, "y": y} for x, y in super().__iter__())


def dicts(batch_size: int = 16) -> tuple[Dicts, Dicts]:
    x, y = rows()
    return Dicts((x[:64], y[:64]), batch_size), Dicts((x[64:], y[64:]), batch_size)


class Unsized:
    """The blobs from a loader that does not know its length."""

    def __iter__(self) -> Iterator[Any]:
        return iter(blobs()[0])


def unsized() -> tuple[Unsized, TensorLoader]:
    return Unsized(), blobs()[1]


class TransferAugmentedImages(TransferAugmented):
    """The same for images."""

    def setup(self, stage: str) -> None:
        x, self.y = rows(features=36)
        self.x = x.reshape(-1, 1, 6, 6)


# --- spaces ------------------------------------------------------------------------------------------------------


class Counted(nn.Module):
    """Marks each batch of training in a file."""

    def __init__(self, counter: str):
        super().__init__()
        self.counter = Path(counter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            with self.counter.open("ab") as file:
                file.write(b".")
        return x


def counted(pick: Pick, counter: str) -> nn.Module:
    return nn.Sequential(Counted(counter), nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 3))


def net(pick: Pick, features: int = 6) -> nn.Module:
    width = pick("width", [4, 8, 12])
    layers: list[nn.Module] = []
    for _ in range(pick("depth", [1, 2])):
        layers += [nn.Linear(features, width), nn.ReLU(), nn.Dropout(pick("dropout", [0.1, 0.3]))]
        features = width
    return nn.Sequential(*layers, nn.Linear(features, 3))


def linear(pick: Pick) -> nn.Module:
    """Nothing random but the initial weights."""
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, pick("classes", [3])))


def deep(pick: Pick) -> nn.Module:
    """Two layers, without a choice."""
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


class _Slowly(nn.Module):
    """Takes its time in training."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training:
            time.sleep(0.1)
        return x


def slow(pick: Pick) -> nn.Module:
    """The same, in half a second an epoch of blobs."""
    return nn.Sequential(_Slowly(), deep(pick))


def cnn(pick: Pick) -> nn.Module:
    width = pick("width", [2, 4])
    kernel = pick("kernel", [1, 3])
    return nn.Sequential(
        nn.Conv2d(1, width, kernel, padding=kernel // 2),
        nn.BatchNorm2d(width),
        nn.ReLU(),
        nn.Dropout2d(pick("dropout", [0.1, 0.3])),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(4 * width, 3),
    )


class Fault(nn.Module):
    """Does something bad in the forward pass number `after`, of those in the given mode."""

    def __init__(self, kind: str, after: int, training: bool):
        super().__init__()
        self.kind, self.after, self.in_training, self.calls = kind, after, training, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.training is not self.in_training:
            return x
        self.calls += 1
        if self.calls != self.after:
            return x
        if self.kind == "raise":
            raise ValueError("a layer gave up")
        if self.kind == "exit":
            raise SystemExit(3)
        if self.kind == "die":
            os._exit(1)
        if self.kind == "nan":
            return x * float("nan")
        if self.kind == "memory":
            raise torch.OutOfMemoryError("no room")
        return x


def faulty(pick: Pick) -> nn.Module:
    kind = pick("fault", ["none", "raise", "exit", "die", "nan", "build", "build exit"])
    if kind == "build":
        raise RuntimeError("this one can't be built")
    if kind == "build exit":
        raise SystemExit("not today")
    fault = Fault(kind, pick("after", [1, 2, 6]), pick("training", [True, False]))
    return nn.Sequential(fault, net(pick))


def frozen(pick: Pick) -> nn.Module:
    """As `faulty`, but its dropout stays in eval mode if so picked: modes differ from member to member."""
    model = faulty(pick)
    if pick("still", [True, False]):
        model.eval()
    return model


class Secretive(nn.Module):
    """From its `after`th training batch on, its state holds what no checkpoint can."""

    def __init__(self, after: int):
        super().__init__()
        self._after = after
        self._seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self._seen += self.training
        return x

    def get_extra_state(self) -> Any:
        return {"seen": object() if self._seen >= self._after else self._seen}

    def set_extra_state(self, state: Any) -> None:
        self._seen = state["seen"]


def secretive(pick: Pick) -> nn.Module:
    return nn.Sequential(Secretive(pick("after", [0, 6, 1000])), net(pick))


class Unused(nn.Module):
    """A layer that no step uses, and one that is used twice, once without being called."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.unused, self.last = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.first(x))
        return self.last(nn.functional.linear(x, self.first.weight, self.first.bias))


def unused(pick: Pick) -> nn.Module:
    return Unused()


class Pairs(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    def __init__(self, x: torch.Tensor, y: torch.Tensor):
        self.x, self.y = x, y

    def __len__(self) -> int:
        return len(self.y)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index], self.y[index]


def sampled(workers: int = 0) -> tuple[DataLoader[Any], DataLoader[Any]]:
    """The blobs by a DataLoader that draws batches of 21 from a data set."""
    x, y = rows()
    train = DataLoader(Pairs(x[:64], y[:64]), batch_size=21, shuffle=True, num_workers=workers)
    return train, DataLoader(Pairs(x[64:], y[64:]), batch_size=9)
