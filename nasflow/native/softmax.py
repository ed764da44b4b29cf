"""Log-softmax over few classes, which torch computes line by line."""

import torch
from torch import Tensor

from nasflow.native.library import library

_MOST_CLASSES = 1000  # with more, torch's own takes longer to run than to start
_LONGEST_VECTOR = 16


def log_softmax(x: Tensor) -> Tensor | None:
    """Return the log-softmax of `[..., C]` over its last dimension, without autograd; None if no kernel fits."""
    native = library()
    if native is None or not _fits(x):
        return None
    x, room = x.contiguous(), _room(x)
    out = torch.empty_like(x)
    classes = x.shape[-1]
    native.nasflow_log_softmax(x.data_ptr(), out.data_ptr(), room.data_ptr(), x.numel() // classes, classes)
    return out


def log_softmax_backward(gradient: Tensor, y: Tensor) -> Tensor | None:
    """Return the gradient by the input of `log_softmax`, from that by its output `y`, `[..., C]`; None as there."""
    native = library()
    if native is None or not (_fits(y) and _fits(gradient)):
        return None
    gradient, y, room = gradient.contiguous(), y.contiguous(), _room(y)
    out = torch.empty_like(y)
    classes = y.shape[-1]
    pointers = [tensor.data_ptr() for tensor in (gradient, y, out, room)]
    native.nasflow_log_softmax_backward(*pointers, y.numel() // classes, classes)
    return out


def _fits(x: Tensor) -> bool:
    return x.dtype is torch.float32 and x.is_cpu and x.ndim > 0 and x.numel() > 0 and x.shape[-1] <= _MOST_CLASSES


def _room(x: Tensor) -> Tensor:
    return x.new_empty(2 * x.shape[-1] * _LONGEST_VECTOR)
