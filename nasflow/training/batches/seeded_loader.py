"""Loaders with batches that depend only on the seed and the epoch."""

import copy
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import torch
from lightning_fabric.utilities.data import sized_len
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset, default_collate

from nasflow.evaluator.loading.folds import ByFold
from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.seeds import derive_seed
from nasflow.training.batches.kept_workers import KeptWorkers, begin_epoch, can_keep, datasets_of
from nasflow.training.batches.passes import Passes
from nasflow.training.batches.shared_data import SharedData
from nasflow.training.member.rng import RngStream


class SeededLoader:
    """A loader with order and augmentation that depend only on the seed and the epoch.

    The loader draws all random numbers from a new stream in every pass over it, so a job that resumes in epoch n sees
    the batches that an uninterrupted one would see there.

    Args:
        loader: a DataLoader, or anything that can be iterated again.
        seed: of all epochs.
        device: where transfer hooks may draw.
        limit: give no more batches than so many in an epoch.
        keep_workers: worker processes stay from pass to pass.
        per_epoch: batches of an epoch, of as many passes as it takes; the next epoch goes on with those that follow.
            None: an epoch is a pass.
        users: as `SharedData` takes them; the same for loaders that may read the same data.

    Attributes:
        epoch: the current one.
        transfers: the random stream of the hooks that transfer the epoch's batches.
    """

    def __init__(
        self,
        loader: Iterable[Any],
        seed: int,
        device: torch.device | None = None,
        *,
        limit: int | None = None,
        keep_workers: bool = False,
        per_epoch: int | None = None,
        users: dict[int, SharedData] | None = None,
    ):
        self.loader = loader
        self._kept = KeptWorkers(cast(DataLoader[Any], loader)) if keep_workers and can_keep(loader) else None
        self._seed = seed
        self._device = device
        self._limit = limit
        self._per_epoch = per_epoch
        self._passes: Passes | None = None
        self._data = SharedData(datasets_of(loader), {} if users is None else users)
        self.epoch = 0
        self._stream = self.transfers = RngStream(seed, device)
        if hasattr(loader, "__len__") or per_epoch is not None:
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

    def from_start(self) -> "SeededLoader":
        """Return a loader that is at epoch 0. This one begins its pass again when it goes on."""
        self._passes = None
        other = copy.copy(self)
        other.epoch = 0
        return other

    def several(self, most: int, most_bytes: int = 0, most_seconds: float = math.inf) -> Iterator[list[Any]]:
        """Yield the same batches in lists of up to `most`, each of one pass.

        The batch that reaches `most_bytes`, or ends after `most_seconds` of loading, ends a list.
        """
        self.transfers = self._make_stream(derive_seed(self._seed, self.epoch, "transfer"))
        for batches in self._epoch_by_pass():
            ended = False
            while not ended:
                with self._drawing():
                    some, ended = _take(batches, most, most_bytes, most_seconds)
                if some:
                    yield some

    def _epoch_by_pass(self) -> Iterator[Iterator[Any]]:
        """Yield the batches of the epoch, in one iterator for each pass."""
        if self._per_epoch is None:
            yield itertools.islice(self._begin(self.epoch), self._limit)
            return
        if self._passes is None:
            self._passes = Passes(self._begin, self._drawing, self._pass_length(), self._passed)
        count = self._per_epoch if self._limit is None else min(self._per_epoch, self._limit)
        yield from self._passes.take(self.epoch * self._per_epoch, count)

    def _begin(self, number: int) -> Iterator[Any]:
        """Return the batches of a pass, to be taken within its stream."""
        seed = derive_seed(self._seed, number)
        batch_sampler = getattr(self.loader, "batch_sampler", None)
        samplers = [getattr(self.loader, "sampler", None), batch_sampler, getattr(batch_sampler, "sampler", None)]
        begin_epoch([self.loader, *samplers], number, seed)
        self._data.begin(number, seed)
        if isinstance(self.loader, DataLoader):
            self.loader._iterator = None  # persistent workers would keep their generators from the last pass
        self._stream = self._make_stream(seed)
        with self._stream:
            return iter(self.loader) if self._kept is None else self._kept.iterate(number, seed)

    @contextmanager
    def _drawing(self) -> Iterator[None]:
        """Load batches of the pass within this: it draws from its own stream, and its data are as it has left them."""
        with self._stream:
            self._data.go_on()
            yield

    def _pass_length(self) -> int | None:
        """Return how many batches a pass has, None if the loader does not know it for sure."""
        if isinstance(getattr(self.loader, "dataset", None), IterableDataset):  # each worker may round it up
            return None
        return sized_len(self.loader)

    def _epoch_length(self) -> int:
        """Return how many batches an epoch has. Raises TypeError if the loader does not know it."""
        length = self._per_epoch or len(self.loader)  # type: ignore[arg-type]
        return length if self._limit is None else min(length, self._limit)

    def _passed(self) -> None:
        """Take note of a batch that was passed over."""

    def _make_stream(self, seed: int) -> RngStream:
        return RngStream(seed, self._device)


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
        return self._epoch_length()
