"""Addresses of tensors in memory, copies to a device, and state dicts of saved tensors."""

from collections import OrderedDict
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn


def address(tensor: torch.Tensor) -> int:
    """Return a tensor's address. `data_ptr` would end the sharing of memory that is copied on write."""
    memory: int = torch._C._data_address(tensor)  # type: ignore[attr-defined]
    return memory + int(tensor.storage_offset()) * tensor.element_size()


def copy_over(target: torch.Tensor, host: torch.Tensor) -> None:
    """Copy a tensor of the host's memory into another; a GPU copies when it comes to it, and the host does not wait."""
    if target.is_cuda:
        target.copy_(host.pin_memory(), non_blocking=True)
    else:
        target.copy_(host)


def load_saved(module: nn.Module, weights: Mapping[str, Any], *, strict: bool = True) -> None:
    """Load saved weights as a state dict of `module`: with the versions of its layers, which no checkpoint has.

    Without them, layers would take the weights for those of their first versions, and change them.
    """
    state = OrderedDict(weights)
    state._metadata = getattr(module.state_dict(), "_metadata", None)  # type: ignore[attr-defined]
    if strict:
        module.load_state_dict(state)
    else:
        module.load_state_dict(state, strict=False)
