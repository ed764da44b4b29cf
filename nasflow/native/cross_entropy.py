"""Cross-entropies of many members at once."""

from typing import Any

import torch
from torch import Tensor

from nasflow.native.library import library

_MOST_CLASSES = 1000  # with more, torch's own takes less to start than to run
_LONGEST_VECTOR = 16


def cross_entropies(logits: Tensor, target: Tensor, smoothing: Tensor) -> Tensor | None:
    """The means `[N]` over the samples of logits `[N, B, C]` with class numbers `[B]`; gradients flow to the logits.

    Args:
        smoothing: of the labels, float32 `[N]`.

    Returns:
        None if it can't be done here: another type or device, many classes, or a target that is no class.
    """
    functions = library()
    if functions is None or logits.dtype is not torch.float32 or not (logits.is_cpu and target.is_cpu):
        return None
    if logits.shape[2] > _MOST_CLASSES or logits.numel() == 0 or torch.is_autocast_enabled("cpu"):
        return None
    losses: Tensor | None = _CrossEntropies.apply(logits, target, smoothing, functions)  # type: ignore[no-untyped-call]
    return losses


class _CrossEntropies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: Tensor, functions: Any) -> Tensor | None:
        logits, target = logits.contiguous(), target.contiguous()
        losses = logits.new_empty(len(logits))
        gradients = torch.empty_like(logits) if ctx.needs_input_grad[0] else None
        room = logits.new_empty(logits.shape[2] * _LONGEST_VECTOR)
        tensors = (logits, target, smoothing, losses, gradients, room)
        pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
        if functions.nasflow_cross_entropy(*pointers, *logits.shape):
            return None
        ctx.gradients = gradients
        return losses

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.gradients * grads[0].view(-1, 1, 1), None, None, None
