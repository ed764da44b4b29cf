"""Addresses of tensors in memory."""

import torch


def address(tensor: torch.Tensor) -> int:
    """Return a tensor's address. `data_ptr` would end the sharing of memory that is copied on write."""
    memory: int = torch._C._data_address(tensor)  # type: ignore[attr-defined]
    return memory + int(tensor.storage_offset()) * tensor.element_size()
