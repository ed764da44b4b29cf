"""Addresses of tensors in memory, and copies to a device."""

import torch


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
