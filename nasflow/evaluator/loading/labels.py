"""The labels of a loader's samples, as far as they are known without loading samples."""

from typing import Any

import torch
from torch.utils.data import Subset, TensorDataset

from nasflow.evaluator.loading.loaders import TensorLoader
from nasflow.evaluator.loading.subsets import Numbered


def labels_of(loader: Numbered, size: int) -> torch.Tensor | None:
    """Return the samples' labels `[size]` if they are known without loading samples, and whole numbers."""
    if isinstance(loader, TensorLoader):
        tensors, rows = loader.tensors, loader.rows
        labels = _of_tensors(tensors)
        labels = labels if labels is None or rows is None else labels[rows.to(labels.device)]
    else:
        labels = _of_dataset(loader.dataset)
    return None if labels is None or labels.shape != (size,) else labels.cpu()


def _of_dataset(dataset: Any) -> torch.Tensor | None:
    if isinstance(dataset, Subset):
        labels = _of_dataset(dataset.dataset)
        return None if labels is None else labels[torch.as_tensor(dataset.indices)]
    if isinstance(dataset, TensorDataset):
        return _of_tensors(dataset.tensors)
    targets = getattr(dataset, "targets", None)  # of torchvision's data sets, as is the next
    transform = getattr(dataset, "target_transform", None)
    if targets is not None and transform is not None:
        targets = [transform(target) for target in getattr(targets, "tolist", lambda: targets)()]
    return None if targets is None else _of_tensors((None, targets))


def _of_tensors(tensors: Any) -> torch.Tensor | None:
    """Return the second of the tensors if it has a whole number for each sample."""
    if len(tensors) != 2:
        return None
    try:
        labels = torch.as_tensor(tensors[1])
    except (TypeError, ValueError, RuntimeError):  # such as text
        return None
    return None if labels.is_floating_point() or labels.is_complex() or labels.ndim != 1 else labels
