"""Worker processes of a DataLoader that stay from epoch to epoch, and begin each as new ones would."""

import copy
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, IterDataPipe, Subset, get_worker_info
from torch.utils.data._utils.worker import _generate_state


class Epoch(NamedTuple):
    """What an epoch of a worker follows from.

    Attributes:
        number: of the epoch, from 0.
        seed: of generators that a data set has.
        base: the workers' seeds begin with it, as torch's do.
        passes: through the loader before this one; an epoch that is given again begins anew.
    """

    number: int
    seed: int
    base: int
    passes: int


class KeptWorkers:
    """Gives the batches of a DataLoader by processes that stay.

    At the first sample of an epoch each worker seeds the global generators of torch, NumPy and Python, its
    `worker_info.seed` and torch generators of the data set, and calls the data set's `set_epoch`. What else a data set
    changes in itself stays as it was.

    Args:
        loader: with workers; its own iterator is not used.
    """

    def __init__(self, loader: DataLoader[Any]):
        self._loader = loader
        dataset: Any = loader.dataset
        own: dict[str, Any] = {"persistent_workers": True, "_iterator": None}
        own["generator"] = torch.Generator()  # so that only `iterate` draws a seed, whether workers begin or stay
        if isinstance(dataset, IterableDataset):
            self._told: Any = torch.zeros(len(Epoch._fields), dtype=torch.int64).share_memory_()
            own["dataset"] = _Stream(dataset, self._told)
        else:
            self._told = _Tagged(loader)
            own["dataset"] = _Samples(dataset)
            own["sampler" if loader.batch_sampler is None else "batch_sampler"] = self._told
        own["worker_init_fn"] = partial(_begin_worker, loader.worker_init_fn)
        self._kept: DataLoader[Any] = copy.copy(loader)
        vars(self._kept).update(own)  # DataLoader refuses to set them
        self._passes = 0

    def iterate(self, number: int, seed: int) -> Iterator[Any]:
        """Return the batches of an epoch; workers that are still busy with another one end that first."""
        base = int(torch.empty((), dtype=torch.int64).random_(generator=self._loader.generator).item())
        epoch = Epoch(number, seed, base, self._passes)
        self._passes += 1
        if isinstance(self._told, _Tagged):
            self._told.epoch = epoch
        else:
            self._told.copy_(torch.tensor(epoch))
        return iter(self._kept)


def can_keep(loader: Any) -> bool:
    """Whether a loader has workers that may stay. An overridden `__iter__` may look at its data set and samplers."""
    return (
        isinstance(loader, DataLoader)
        and loader.num_workers > 0
        and type(loader).__iter__ is DataLoader.__iter__
        and not isinstance(loader.dataset, IterDataPipe)
    )


def datasets_of(loader: Any) -> list[Any]:
    """Return a loader's data set and those that it is a part of."""
    datasets = [getattr(loader, "dataset", None)]
    while isinstance(datasets[-1], Subset):  # hides what it is a part of
        datasets.append(datasets[-1].dataset)
    return datasets


def begin_epoch(parts: Iterable[Any], number: int, seed: int) -> None:
    """Seed the torch generators of these samplers and data sets, and tell them the epoch."""
    for part in parts:
        if isinstance(getattr(part, "generator", None), torch.Generator):
            part.generator.manual_seed(seed)
        if hasattr(part, "set_epoch"):
            part.set_epoch(number)


class _Tagged:
    """Puts the epoch beside the places of samples."""

    def __init__(self, loader: DataLoader[Any]):
        self._places: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
        self.epoch: Epoch | None = None

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[tuple[Epoch | None, Any]]:
        epoch = self.epoch
        return ((epoch, places) for places in self._places)


class _Worker:
    """Begins an epoch in a worker."""

    def __init__(self, dataset: Any):
        self.own = dataset

    def begin(self, epoch: Epoch) -> None:
        begin_epoch(datasets_of(self), epoch.number, epoch.seed)
        info: Any = get_worker_info()
        seed = epoch.base + info.id
        object.__setattr__(info, "seed", seed)  # it is frozen
        random.seed(seed)
        torch.manual_seed(seed)
        np.random.seed(_generate_state(epoch.base, info.id))

    @property
    def dataset(self) -> Any:
        return self.own


class _Samples(Dataset[Any]):
    """Begins an epoch when its first sample is asked for."""

    def __init__(self, dataset: Any):
        self.worker = _Worker(dataset)
        self._epoch: Epoch | None = None

    def __len__(self) -> int:
        return len(self.worker.own)

    def __getitem__(self, tagged: tuple[Epoch, Any]) -> Any:
        """Return a sample, or of a loader without batches whatever its sampler asks for."""
        self._begin(tagged[0])
        return self.worker.own[tagged[1]]

    def __getitems__(self, tagged: tuple[Epoch, Sequence[Any]]) -> Any:
        """Return the samples of a batch."""
        self._begin(tagged[0])
        own = self.worker.own
        several = getattr(own, "__getitems__", None)
        return several(tagged[1]) if several else [own[place] for place in tagged[1]]

    def _begin(self, epoch: Epoch) -> None:
        if epoch != self._epoch:
            self._epoch = epoch
            self.worker.begin(epoch)


class _Stream(IterableDataset[Any]):
    def __init__(self, dataset: Any, told: torch.Tensor):
        self.worker, self._told = _Worker(dataset), told

    def __iter__(self) -> Iterator[Any]:
        self.worker.begin(Epoch(*self._told.tolist()))  # perhaps the next pass's, if this one was left early
        yield from self.worker.own


def _begin_worker(own: Callable[[int], None] | None, number: int) -> None:
    """Run the user's `worker_init_fn`; what it seeds, the first epoch seeds again."""
    info: Any = get_worker_info()
    object.__setattr__(info, "dataset", info.dataset.worker.own)  # it is frozen
    if own is not None:
        own(number)
