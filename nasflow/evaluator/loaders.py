"""A fast loader for tensors that fit in memory."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch


class TensorLoader:
    """Loads batches as slices of tensors that fit in memory, without the DataLoader's cost for every sample.

    Args:
        tensors: tensors of equal length N in their first dimension.
        batch_size: samples per batch; the last batch may be smaller.
        shuffle: draw a new order at every pass, from torch's global generator.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], batch_size: int, shuffle: bool = False):
        if batch_size < 1:
            raise ValueError(f"batch_size is {batch_size}; it should be at least 1")
        self.tensors = tuple(tensors)
        self.batch_size = batch_size
        self.shuffle = shuffle

    def __len__(self) -> int:
        """Return the number of batches in a pass."""
        return math.ceil(len(self.tensors[0]) / self.batch_size)

    def __iter__(self) -> Iterator[tuple[torch.Tensor, ...]]:
        size = len(self.tensors[0])
        order = torch.randperm(size) if self.shuffle else None
        for start in range(0, size, self.batch_size):
            part: Any = slice(start, start + self.batch_size)
            if order is not None:
                part = order[part]
            yield tuple(tensor[part] for tensor in self.tensors)
