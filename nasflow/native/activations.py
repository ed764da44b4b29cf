"""Activations of tensors that may be elsewhere in memory at each call; `program` has those that stay in place."""

import torch
from torch import Tensor

from nasflow.native.channel_matrix import line_of, lines_in
from nasflow.native.library import library
from nasflow.native.program import ACTIVATIONS


def activate(name: str, x: Tensor, out: Tensor) -> bool:
    """Compute `out = f(x)`, one of `ACTIVATIONS`; return False, with nothing done, if no kernel fits."""
    return name in ACTIVATIONS and _run(ACTIVATIONS.index(name), x, None, out)


def activate_backward(name: str, grad: Tensor, value: Tensor, out: Tensor) -> bool:
    """Compute `out = grad * f'`, with `value` as for `program.activation_backward`; return False as above."""
    return name in ACTIVATIONS and _run(len(ACTIVATIONS) + ACTIVATIONS.index(name), grad, value, out)


def _run(kind: int, x: Tensor, y: Tensor | None, out: Tensor) -> bool:
    functions = library()
    tensors = (x, out) if y is None else (x, out, y)
    if functions is None or not all(tensor.dtype is torch.float32 and tensor.is_cpu for tensor in tensors):
        return False
    lines = [line_of(tensor) for tensor in tensors]
    if None in lines:
        return False
    value = (None, 0) if y is None else (y.data_ptr(), lines[2])
    functions.nasflow_pointwise(kind, x.data_ptr(), lines[0], *value, out.data_ptr(), lines[1], lines_in(x), x.shape[1])
    return True
