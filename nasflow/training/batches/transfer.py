"""Copies runs of batches to a GPU, at once and without waiting for it."""

from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from nasflow.training.batches.batch_runs import Run


def run_on(device: torch.device, run: Run) -> Run | None:
    """Return a run on a device: the tensors at one place in all its batches are copied together, and are views there.

    From the host to a GPU they are copied from pinned memory, so that the host goes on meanwhile.

    Returns:
        None if the batches are not alike, or consist of other things than tensors of samples.
    """
    trees = [tree_flatten(batch) for batch in run]
    if any(spec != trees[0][1] for _, spec in trees):
        return None
    columns = list(zip(*(leaves for leaves, _ in trees), strict=True))
    if not columns or not all(map(_can_join, columns)):
        return None
    moved = []
    for column in columns:
        whole = torch.cat(column)
        if device.type == "cuda" and whole.device.type == "cpu":
            whole = whole.pin_memory()
        moved.append(whole.to(device, non_blocking=True).split([len(tensor) for tensor in column]))
    return Run(tree_unflatten(list(leaves), trees[0][1]) for leaves in zip(*moved, strict=True))


def _can_join(column: Sequence[Any]) -> bool:
    """Whether these are dense tensors of one device that differ in the number of samples at most."""
    first = column[0]
    return all(
        type(tensor) is torch.Tensor
        and tensor.device == first.device
        and tensor.layout is torch.strided
        and tensor.ndim > 0
        and tensor.is_contiguous()
        and not tensor.requires_grad
        and (tensor.dtype, tensor.shape[1:]) == (first.dtype, first.shape[1:])
        for tensor in column
    )
