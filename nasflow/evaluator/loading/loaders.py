"""A fast loader for tensors that fit in memory."""

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, Self

import torch


class TensorLoader:
    """Loads batches as slices of tensors that fit in memory, without the DataLoader's cost for every sample.

    Args:
        tensors: tensors of equal length N in their first dimension.
        batch_size: samples per batch; the last batch may be smaller.
        shuffle: draw a new order at every pass, from torch's global generator.

    Attributes:
        rows: the numbers of the samples that it loads, None for all.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], batch_size: int, shuffle: bool = False):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it should be at least 1")
        self.tensors = tuple(tensors)
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.rows: torch.Tensor | None = None

    @property
    def size(self) -> int:
        """The number of samples in a pass."""
        return len(self.tensors[0]) if self.rows is None else len(self.rows)

    def only(self, numbers: Sequence[int], *, shuffle: bool) -> Self:
        """Return a loader of some of its samples, by their numbers in this one, without copying the tensors."""
        loader = copy.copy(self)
        rows = torch.tensor(numbers, dtype=torch.int64, device="cpu")
        loader.rows, loader.shuffle = rows if self.rows is None else self.rows[rows], shuffle
        return loader

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return math.ceil(self.size / self.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        size, order = self.size, self.rows
        if self.shuffle:
            drawn = torch.randperm(size)
            order = drawn if order is None else order[drawn]
        for start in range(0, size, self.batch_size):
            part: Any = slice(start, start + self.batch_size)
            if order is not None:
                part = order[part]
            yield tuple(tensor[part] for tensor in self.tensors)
