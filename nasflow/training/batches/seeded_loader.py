"""Loaders with batches that depend only on the seed and the epoch."""

import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, Subset, default_collate

from nasflow.evaluator.loading.folds import ByFold
from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.seeds import derive_seed
from nasflow.training.member.rng import RngStream


class SeededLoader:
    """A loader with order and augmentation that depend only on the seed and the epoch.

    The loader draws all random numbers from a new stream in every epoch, so a job that resumes in epoch n sees the
    batches that an uninterrupted one would see there.

    Args:
        loader: a DataLoader, or anything that can be iterated again.
        seed: of all epochs.
        device: where transfer hooks may draw.
        limit: give no more batches than so many in an epoch.
    """

    def __init__(self, loader: Iterable[Any], seed: int, device: torch.device | None = None, limit: int | None = None):
        self.loader = loader
        self._seed = seed
        self._device = device
        self._limit = limit
        self.epoch = 0
        self.stream = RngStream(seed, device)
        if hasattr(loader, "__len__"):
            self.__class__ = _SizedSeededLoader

    @property
    def can_run_ahead(self) -> bool:
        """Whether several batches may be taken before the first is used.

        A batch must not change when the next one is made, and no worker processes should wait meanwhile.
        """
        if isinstance(self.loader, DataLoader):  # a batch collated from samples is a new tensor
            is_new = self.loader.batch_sampler is not None and self.loader.collate_fn is default_collate
            return is_new and self.loader.num_workers == 0
        return isinstance(self.loader, TensorLoader)

    def set_epoch(self, epoch: int) -> None:
        """Give the batches of an epoch."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        for (batch,) in self.several(1):
            yield batch

    def several(self, most: int, most_bytes: int = 0, most_seconds: float = math.inf) -> Iterator[list[Any]]:
        """Yield the same batches in lists of up to `most`.

        The batch that reaches `most_bytes`, or ends after `most_seconds` of loading, ends a list.
        """
        batches, ended = itertools.islice(self._start(), self._limit), False
        while not ended:
            with self.stream:
                some, ended = _take(batches, most, most_bytes, most_seconds)
            if some:
                yield some

    def _start(self) -> Iterator[Any]:
        seed = derive_seed(self._seed, self.epoch)
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        samplers = [getattr(self.loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
        datasets = [getattr(self.loader, "dataset", None)]
        while isinstance(datasets[-1], Subset):  # hides what it is a part of
            datasets.append(datasets[-1].dataset)
        parts: list[Any] = [self.loader, *samplers, *datasets]
        for part in parts:
            if isinstance(getattr(part, "generator", None), torch.Generator):
                part.generator.manual_seed(seed)
            if hasattr(part, "set_epoch"):
                part.set_epoch(self.epoch)
        if isinstance(self.loader, DataLoader):
            self.loader._iterator = None  # persistent workers would keep their generators from the last epoch
        self.stream = RngStream(seed, self._device)
        with self.stream:
            return iter(self.loader)


class FoldedLoader:
    """The loaders of several folds, with one batch of each at a time: `ByFold`. A fold may end before others.

    Args:
        loaders: of each fold.
    """

    def __init__(self, loaders: Sequence[SeededLoader]):
        self._loaders = loaders

    def set_epoch(self, epoch: int) -> None:
        """Make all loaders give the batches of an epoch."""
        for loader in self._loaders:
            loader.epoch = epoch

    @property
    def can_run_ahead(self) -> bool:
        """Whether several batches may be taken before the first is used."""
        return all(loader.can_run_ahead for loader in self._loaders)

    def __iter__(self) -> Iterator[ByFold]:
        for batches in itertools.zip_longest(*self._loaders):
            yield ByFold(batches)

    def several(self, most: int, most_bytes: int = 0, most_seconds: float = math.inf) -> Iterator[list[ByFold]]:
        """Yield the same in lists, as `SeededLoader.several` does."""
        batches, ended = iter(self), False
        while not ended:
            some, ended = _take(batches, most, most_bytes, most_seconds)
            if some:
                yield some


def _take(batches: Iterator[Any], most: int, most_bytes: int, most_seconds: float) -> tuple[list[Any], bool]:
    """Return the next batches, and whether there are no more."""
    some: list[Any] = []
    room, deadline = most_bytes, time.monotonic() + most_seconds
    while not some or (len(some) < most and room > 0 and time.monotonic() < deadline):
        try:
            some.append(next(batches))
        except StopIteration:
            return some, True
        room -= _bytes(some[-1])
    return some, False


def _bytes(batch: Any) -> int:
    if isinstance(batch, ByFold):
        return sum(map(_bytes, batch))
    tensors = [leaf for leaf in tree_leaves(batch) if isinstance(leaf, torch.Tensor)]
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)  # sparse ones have no `nbytes`


class _SizedSeededLoader(SeededLoader):
    def __len__(self) -> int:
        length = len(self.loader)  # type: ignore[arg-type]
        return length if self._limit is None else min(length, self._limit)
