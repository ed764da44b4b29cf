"""A loader of a share of the samples, for cheap trials."""

from collections.abc import Iterable, Sequence, Sized
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
from nasflow.evaluator.loaders import TensorLoader
from nasflow.seeds import derive_seed

_KEY = "evaluator.data.fraction"


def share_of(loader: Iterable[Any], fraction: float, seed: int, target: str) -> Iterable[Any]:
    """Return a loader of a share of the samples, in batches of the same size; this one itself for all of them.

    The same seed draws the same samples, and those of a smaller share are among those of a larger one.

    Raises:
        ConfigError: the fraction is not above 0 and at most 1, or samples can't be left out of this loader.
    """
    if not 0 < fraction <= 1:
        raise ConfigError(f"{_KEY}: it should be a number above 0 and at most 1, not {fraction!r}")
    if fraction == 1:
        return loader
    if isinstance(loader, TensorLoader):
        chosen = torch.tensor(_drawn(len(loader.tensors[0]), fraction, seed))
        return TensorLoader([tensor[chosen] for tensor in loader.tensors], loader.batch_size, loader.shuffle)
    if type(loader) is not DataLoader or isinstance(loader.dataset, IterableDataset):
        raise _refused(target, f"a {type(loader).__name__} of samples that have no numbers")
    if loader.batch_sampler is not None and type(loader.batch_sampler) is not BatchSampler:
        raise _refused(target, f"a batch sampler of its own ({type(loader.batch_sampler).__name__})")
    dataset: Any = loader.dataset
    if not isinstance(dataset, Sized):
        raise _refused(target, f"samples without a length ({type(dataset).__name__})")
    chosen_samples = _drawn(len(dataset), fraction, seed)
    return _with_samples(loader, chosen_samples, _sampler(loader.sampler, chosen_samples, fraction, target))


def _drawn(size: int, fraction: float, seed: int) -> list[int]:
    """Return the numbers of the samples, in order; those of smaller fractions come first in one random order."""
    order = torch.randperm(size, generator=torch.Generator().manual_seed(derive_seed(seed, "fraction")), device="cpu")
    return sorted(order[: max(1, round(fraction * size))].tolist())


def _sampler(sampler: Any, chosen: Sequence[int], fraction: float, target: str) -> Sampler[int]:
    """Return a sampler of the same kind for the chosen samples, which are numbered anew."""
    kind = type(sampler)
    if kind is SequentialSampler:
        return SequentialSampler(chosen)
    if kind is RandomSampler and not sampler.replacement and sampler._num_samples is None:
        return RandomSampler(chosen, generator=sampler.generator)
    if kind is WeightedRandomSampler:
        weights = sampler.weights[torch.tensor(chosen)].tolist()
        count = max(1, round(fraction * sampler.num_samples))
        return WeightedRandomSampler(weights, count, sampler.replacement, sampler.generator)
    raise _refused(target, f"a sampler of its own ({kind.__name__})")


def _with_samples(loader: DataLoader[Any], chosen: Sequence[int], sampler: Sampler[int]) -> DataLoader[Any]:
    return DataLoader(
        Subset(loader.dataset, chosen),
        batch_size=loader.batch_size,
        sampler=sampler,
        drop_last=loader.drop_last,
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


def _refused(target: str, what: str) -> ConfigError:
    return ConfigError(
        f"{_KEY}: {target} gives a loader with {what}, from which nasflow can't leave out samples; do that in its own "
        "code, by a param, which may be searched too"
    )
