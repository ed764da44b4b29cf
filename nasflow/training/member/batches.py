"""Batches that several members train on."""

import copy
from typing import Any

import torch


def copied(batch: Any) -> Any:
    """Copy a batch, because a member that writes into it must not affect the others.

    `deepcopy` would copy the whole storage of a tensor that is a slice.
    """
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if type(batch) in (tuple, list):
        return type(batch)(map(copied, batch))
    if type(batch) is dict:
        return {key: copied(part) for key, part in batch.items()}
    return copy.deepcopy(batch)
