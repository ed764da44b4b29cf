"""Loaders of some of a loader's samples, in batches of the same size."""

from collections.abc import Callable, Iterable, Sequence, Sized
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    Subset,
    WeightedRandomSampler,
)

from nasflow.errors import ConfigError
from nasflow.evaluator.loading.loaders import TensorLoader

Refuse = Callable[[str], ConfigError]
"""Returns the error for a loader whose samples can't be chosen, from what is wrong with it."""
Numbered = TensorLoader | DataLoader[Any]


def numbered(loader: Iterable[Any], refuse: Refuse) -> tuple[Numbered, int]:
    """Return the loader if its samples have numbers, and how many there are. Raises what `refuse` returns."""
    if isinstance(loader, TensorLoader):
        return loader, loader.size
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        raise refuse(f"a {type(loader).__name__} of samples that have no numbers")
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        raise refuse(f"a batch sampler of its own ({type(loader.batch_sampler).__name__})")
    dataset: Any = loader.dataset
    if not isinstance(dataset, Sized):
        raise refuse(f"samples without a length ({type(dataset).__name__})")
    return loader, len(dataset)


def length_of(sized: Any) -> int | None:
    """Return a length, None if it is not known: a DataLoader of a stream has one that raises, as have some samplers."""
    try:
        return len(sized)
    except (TypeError, NotImplementedError):
        return None


def last_batch(loader: Any) -> int | None:
    """Return how many samples the last batch of a pass has, None if that is not known."""
    if type(loader) is TensorLoader:
        size, batch_size, drops = loader.size, loader.batch_size, False
    elif type(loader) is DataLoader and type(loader.batch_sampler) is BatchSampler:
        batches = loader.batch_sampler
        drawn = length_of(batches.sampler)
        if isinstance(loader.dataset, IterableDataset) or drawn is None:
            return None
        size, batch_size, drops = drawn, batches.batch_size, batches.drop_last
    else:
        return None
    return batch_size if drops else size % batch_size or batch_size


def sampler_of(loader: DataLoader[Any]) -> Any:
    """Return what draws the samples of a loader with numbers, which may have been given it in a batch sampler."""
    return getattr(loader.batch_sampler, "sampler", loader.sampler)


def some_of(loader: Numbered, chosen: Sequence[int], share: float, refuse: Refuse) -> Numbered:
    """Return a loader of the chosen samples, drawn as this one draws. Raises what `refuse` returns.

    Args:
        share: of all samples, by which a sampler that draws a fixed number of times draws less often.
    """
    if isinstance(loader, TensorLoader):
        return loader.only(chosen, shuffle=loader.shuffle)
    drop_last = getattr(loader.batch_sampler, "drop_last", loader.drop_last)
    return _with_samples(loader, chosen, _sampler(sampler_of(loader), chosen, share, refuse), drop_last)


def in_order(loader: Numbered, chosen: Sequence[int]) -> Numbered:
    """Return a loader of all the chosen samples, in this order."""
    if isinstance(loader, TensorLoader):
        return loader.only(chosen, shuffle=False)
    return _with_samples(loader, chosen, SequentialSampler(chosen), drop_last=False)


def _sampler(sampler: Any, chosen: Sequence[int], share: float, refuse: Refuse) -> Sampler[int]:
    """Return a sampler of the same kind for the chosen samples, which are numbered anew."""
    kind = type(sampler)
    if kind is SequentialSampler:
        return SequentialSampler(chosen)
    if kind is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        return RandomSampler(chosen, generator=sampler.generator)
    if kind is WeightedRandomSampler:
        weights = sampler.weights[torch.tensor(chosen)].tolist()
        count = max(1, round(share * sampler.num_samples))
        return WeightedRandomSampler(weights, count, sampler.replacement, sampler.generator)
    raise refuse(f"a sampler of its own ({kind.__name__})")


def _with_samples(
    loader: DataLoader[Any], chosen: Sequence[int], sampler: Sampler[int], drop_last: bool
) -> DataLoader[Any]:
    return DataLoader(
        Subset(loader.dataset, chosen),
        batch_size=getattr(loader.batch_sampler, "batch_size", loader.batch_size),
        sampler=sampler,
        drop_last=drop_last,
        num_workers=loader.num_workers,
        collate_fn=loader.collate_fn,
        pin_memory=loader.pin_memory,
        timeout=loader.timeout,
        worker_init_fn=loader.worker_init_fn,
        multiprocessing_context=loader.multiprocessing_context,
        generator=loader.generator,
        prefetch_factor=loader.prefetch_factor,
        persistent_workers=loader.persistent_workers,
    )
