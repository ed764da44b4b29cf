"""Which tensors a file can hold, and which are stored together."""

import functools

import safetensors.torch
import torch

from nasflow.checkpoint.json_text import MisfitError

Kind = tuple[torch.dtype, torch.device]


def kind_of(tensor: torch.Tensor) -> Kind:
    """Return what the tensors of a block have in common."""
    return tensor.dtype, tensor.device


def refuse_unstorable(tensor: torch.Tensor) -> None:
    """Raise MisfitError for a tensor that no file can hold."""
    if tensor.layout is not torch.strided or tensor.is_meta or not _storable(tensor.dtype):
        kind = f"{tensor.layout} tensor of {tensor.dtype} on {tensor.device}"
        raise MisfitError(kind.replace("torch.", ""))


@functools.cache
def _storable(dtype: torch.dtype) -> bool:
    """Whether a safetensors file can hold this dtype."""
    try:
        safetensors.torch.save({"": torch.empty(0, dtype=dtype)})
    except (KeyError, RuntimeError, safetensors.SafetensorError):
        return False
    return True
