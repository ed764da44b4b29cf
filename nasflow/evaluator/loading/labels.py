"""The labels of a loader's samples, as far as they are known without loading samples."""

from collections.abc import Callable
from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    Subset,
    SubsetRandomSampler,
    TensorDataset,
    default_collate,
)

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.evaluator.loading.subsets import Numbered


def labels_of(loader: Numbered, size: int, transformed: bool = False) -> torch.Tensor | None:
    """Return the samples' labels `[size]` if they are known without loading samples, and whole numbers.

    Args:
        transformed: whether labels are wanted as the data set's `target_transform` makes them of its `targets`.
    """
    if isinstance(loader, TensorLoader):
        tensors, rows = loader.tensors, loader.rows
        labels = _of_tensors(tensors)
        labels = labels if labels is None or rows is None else labels[rows.to(labels.device)]
    else:
        labels = _of_dataset(loader.dataset, transformed)
    return None if labels is None or labels.shape != (size,) else labels.cpu()


def known_pair(loader: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return one input `[1, ...]` and the targets of all drawn samples `[N, ...]` of a loader that has them as tensors.

    None for any other loader, for one that makes something else of them, and for one that may leave some of them out.
    """
    tensors: tuple[torch.Tensor, ...] = ()
    rows: torch.Tensor | slice | None = None
    if type(loader) is TensorLoader:
        tensors, rows = loader.tensors, slice(None) if loader.rows is None else loader.rows
    elif type(loader) is DataLoader and type(loader.batch_sampler) is BatchSampler:
        dataset: Any = loader.dataset
        inner = dataset.dataset if type(dataset) is Subset else dataset
        if type(inner) is TensorDataset and loader.collate_fn is default_collate:
            tensors, rows = inner.tensors, _drawn(loader.batch_sampler)
        if inner is not dataset and rows is not None:
            rows = torch.as_tensor(dataset.indices).long()[rows]
    if rows is None or len(tensors) != 2 or not len(tensors[0]):
        return None
    return tensors[0][:1], tensors[1][rows.to(tensors[1].device) if isinstance(rows, torch.Tensor) else rows]


def _drawn(batches: BatchSampler) -> torch.Tensor | slice | None:
    """Return the numbers of the samples that are drawn over the epochs, None if these are not known."""
    sampler: Any = batches.sampler
    if type(sampler) is SubsetRandomSampler:
        return torch.as_tensor(sampler.indices).long()
    if type(sampler) is SequentialSampler:
        left_out = len(sampler) % batches.batch_size if batches.drop_last else 0
        return slice(len(sampler) - left_out)
    draws_all = type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None
    return slice(len(sampler)) if draws_all else None


def _of_dataset(dataset: Any, transformed: bool) -> torch.Tensor | None:
    if isinstance(dataset, Subset):
        labels = _of_dataset(dataset.dataset, transformed)
        return None if labels is None else labels[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, TensorDataset):
        return _of_tensors(dataset.tensors)
    targets = getattr(dataset, "targets", None)  # of torchvision's data sets, as is the next
    labels = None if targets is None else _of_tensors((None, targets))
    transform = getattr(dataset, "target_transform", None) if transformed else None
    return labels if labels is None or transform is None else _transformed(labels, transform)


def _transformed(labels: torch.Tensor, transform: Callable[[int], Any]) -> torch.Tensor:
    """Return what a transform makes of labels; the labels if it gives no whole numbers, as for vectors of one 1."""
    try:
        made = _of_tensors((None, [transform(label) for label in labels.tolist()]))
    except Exception:  # any: it may be meant for something else than `targets`
        return labels
    return labels if made is None else made


def _of_tensors(tensors: Any) -> torch.Tensor | None:
    """Return the second of the tensors if it has a whole number for each sample."""
    if len(tensors) != 2:
        return None
    try:
        labels = torch.as_tensor(tensors[1])
    except (TypeError, ValueError, RuntimeError):  # such as text
        return None
    return None if labels.is_floating_point() or labels.is_complex() or labels.ndim != 1 else labels
