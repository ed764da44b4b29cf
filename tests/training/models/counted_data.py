"""Data that counts how often each sample is read."""

from collections import Counter

import torch
from torch.utils.data import DataLoader, Dataset, Subset

READ: Counter[tuple[str, int]] = Counter()


class Counted(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Rows of six numbers, each of one of three classes."""

    def __init__(self, name: str, size: int):
        draws = torch.Generator().manual_seed(size)
        self._name = name
        self._x = torch.randn(size, 6, generator=draws)
        self._y = torch.randint(3, (size,), generator=draws)

    def __len__(self) -> int:
        return len(self._x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        READ[self._name, index] += 1
        return self._x[index], self._y[index]


def rows() -> tuple[DataLoader, DataLoader]:
    """40 samples to train on and 24 to validate on, in batches of 8."""
    return DataLoader(Counted("train", 40), batch_size=8, shuffle=True), DataLoader(Counted("validation", 24), 8)


class Drawn(Counted):
    """Adds noise from its generator, and the number of the pass."""

    def __init__(self) -> None:
        super().__init__("drawn", 64)
        self.generator = torch.Generator()
        self.epoch = -1

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        self.generator.manual_seed(epoch)  # as many data sets do

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = super().__getitem__(index)
        return x + self.epoch + torch.rand(6, generator=self.generator), y


def halves() -> tuple[DataLoader, DataLoader]:
    """Parts of one data set: 40 samples to train on, in five batches, and 24 to validate on."""
    drawn = Drawn()
    return DataLoader(Subset(drawn, range(40)), 8, shuffle=True), DataLoader(Subset(drawn, range(40, 64)), 8)
