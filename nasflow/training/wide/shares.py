"""The share of each batch that a rank trains on, of the batches that one process would have."""

import copy
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils._pytree import tree_leaves
from torch.utils.data import DataLoader, IterableDataset

from nasflow.errors import TrialError
from nasflow.seeds import derive_seed
from nasflow.training.batches.seeded_loader import SeededLoader
from nasflow.training.member.metrics.metric_log import batch_size_of
from nasflow.training.member.rng import RngStream

_PLAIN = (str, bytes, int, float, bool, type(None))


class Share(NamedTuple):
    """The samples of a batch that a rank has: from `start` to before `stop`.

    Attributes:
        weight: of the mean loss over them, so that the mean over all ranks is that of the whole batch.
    """

    start: int
    stop: int
    weight: float

    @property
    def is_guest(self) -> bool:
        """Whether another rank has them, too, because there are not enough for all; here they count for nothing."""
        return not self.weight


def share_of(size: int, rank: int, ranks: int) -> Share:
    """Return the share of a batch of `size` samples. No rank has none, because all take part in each step."""
    if size < 1:
        raise TrialError("evaluator.parallel: a batch has no samples")
    if size < ranks:
        return Share(rank, rank + 1, ranks / size) if rank < size else Share(0, 1, 0.0)
    start, stop = size * rank // ranks, size * (rank + 1) // ranks
    return Share(start, stop, (stop - start) * ranks / size)


def part_of(batch: Any, share: Share, size: int) -> Any:
    """Return the samples of a share of a batch with `size` of them: rows of tensors, items of lists.

    Raises:
        TrialError: something in the batch can't be divided.
    """
    if isinstance(batch, torch.Tensor | np.ndarray):
        if batch.ndim and len(batch) != size:
            raise TrialError(
                f"evaluator.parallel: a batch of {size} samples has a tensor {tuple(batch.shape)}, which can't be "
                "divided among devices; let the first dimension be that of the samples"
            )
        return batch[share.start : share.stop] if batch.ndim else batch
    if isinstance(batch, Mapping):
        return {key: part_of(value, share, size) for key, value in batch.items()}
    if isinstance(batch, list | tuple):
        if len(batch) == size and not any(isinstance(leaf, torch.Tensor) for leaf in tree_leaves(batch)):
            return batch[share.start : share.stop]
        parts = [part_of(value, share, size) for value in batch]
        return type(batch)(*parts) if hasattr(batch, "_fields") else type(batch)(parts)
    if isinstance(batch, _PLAIN):
        return batch
    raise TrialError(
        f"evaluator.parallel: a {type(batch).__name__} in a batch can't be divided among devices; give a DataLoader "
        "with a batch_size, of which each device loads its own samples, or batches of tensors, lists and dicts"
    )


class ShareLoader(SeededLoader):
    """Gives a rank its share of each batch of a seeded loader, in the same order.

    Of a DataLoader that draws batches from a data set, a rank loads its own samples only, and draws their augmentation
    from a stream of its own. Any other loader gives each rank the whole batches, of which it takes a part.

    Attributes:
        shares: of the batches that were given, the next one first; who takes a batch takes its share.
    """

    def __init__(self, whole: SeededLoader, rank: int, ranks: int):
        options: dict[str, Any] = {"limit": whole._limit, "per_epoch": whole._per_epoch, "users": whole._data.users}
        super().__init__(whole.loader, whole._seed, whole._device, **options)
        self.__class__ = ShareLoader  # a loader that knows its length changes its class
        self.shares: deque[Share] = deque()
        self._rank, self._ranks = rank, ranks
        self._is_divided = _draws_batches(whole.loader)
        if self._is_divided:
            self.loader = copy.copy(whole.loader)
            self._sampler = _ShareSampler(self.loader.batch_sampler, rank, ranks, self.shares)  # type: ignore[attr-defined]
            self.loader.__dict__["batch_sampler"] = self._sampler  # which a DataLoader lets nobody set

    def __len__(self) -> int:
        """Return the number of batches. Raises TypeError if the loader does not know it."""
        return self._epoch_length()

    def __iter__(self) -> Iterator[Any]:
        for (batch,) in self.several(1):
            if self._is_divided:
                yield batch
            else:
                size = batch_size_of(batch)
                share = share_of(size, self._rank, self._ranks)
                part = part_of(batch, share, size)
                self.shares.append(share)
                yield part

    def _begin(self, number: int) -> Iterator[Any]:
        if self._per_epoch is None:  # else some may belong to the end of the pass before
            self.shares.clear()
        if self._is_divided:
            draws_seed = self.loader.generator is None  # type: ignore[attr-defined]
            self._sampler.begin(derive_seed(self._seed, number), draws_seed)
        return super()._begin(number)

    def _passed(self) -> None:
        if self._is_divided:
            self.shares.popleft()

    def _make_stream(self, seed: int) -> RngStream:
        return RngStream(derive_seed(seed, "rank", self._rank) if self._is_divided else seed, self._device)


class _ShareSampler:
    """A batch sampler that gives a rank's share of each batch of another, whose order is drawn apart."""

    def __init__(self, whole: Iterable[Any], rank: int, ranks: int, shares: deque[Share]):
        self._whole, self._rank, self._ranks, self._shares = whole, rank, ranks, shares
        self.begin(0, False)

    def begin(self, seed: int, draws_seed: bool) -> None:
        """Begin a pass, in which one process would draw the order of samples from a stream with this seed.

        Args:
            draws_seed: whether its DataLoader would draw the seed of its workers from there, too.
        """
        self._order = RngStream(seed)  # the same on all ranks, whatever their samples draw
        self._draws_seed = draws_seed

    def __iter__(self) -> Iterator[list[Any]]:
        with self._order:
            batches = iter(self._whole)
            if self._draws_seed:  # which it does next, and once
                torch.empty((), dtype=torch.int64).random_()
        self._draws_seed = False
        return self._shares_of(batches)

    def _shares_of(self, batches: Iterator[Any]) -> Iterator[list[Any]]:
        while True:
            with self._order:
                batch = next(batches, None)
            if batch is None:
                return
            indices = list(batch)
            share = share_of(len(indices), self._rank, self._ranks)
            self._shares.append(share)
            yield indices[share.start : share.stop]

    def __len__(self) -> int:
        return len(self._whole)  # type: ignore[arg-type]

    def __getattr__(self, name: str) -> Any:  # `sampler`, `generator`, `set_epoch`, where the other has them
        return getattr(self.__dict__["_whole"], name)


def _draws_batches(loader: Any) -> bool:
    """Whether a loader takes the samples of each batch from a data set by their numbers."""
    return (
        isinstance(loader, DataLoader)
        and loader.batch_sampler is not None
        and not isinstance(loader.dataset, IterableDataset)
    )
