"""Cross-entropies of many members at once."""

from typing import Any

import torch
from torch import Tensor

from nasflow.native.library import library

_MOST_CLASSES = 1000  # with more, torch's own takes longer to run than to start
_LONGEST_VECTOR = 16


def cross_entropies(logits: Tensor, target: Tensor, smoothing: Tensor) -> Tensor | None:
    """Return the means `[N]` over the samples of logits `[N, B, C]` with class numbers `[B]`, differentiably.

    Args:
        smoothing: label smoothing, float32 `[N]`.

    Returns:
        None if no kernel fits: another type or device, many classes, or a target that is not a class.
    """
    if not _fits(logits, target):
        return None
    losses: Tensor | None = _CrossEntropies.apply(logits, target, smoothing)  # type: ignore[no-untyped-call]
    return losses


def cross_entropies_and_gradients(logits: Tensor, target: Tensor, smoothing: Tensor) -> tuple[Tensor, Tensor] | None:
    """Return `cross_entropies` and the gradients `[N, B, C]` of their sum."""
    if not _fits(logits, target):
        return None
    gradients = torch.empty_like(logits, memory_format=torch.contiguous_format)
    losses = _compute(logits, target, smoothing, gradients)
    return None if losses is None else (losses, gradients)


def _fits(logits: Tensor, target: Tensor) -> bool:
    if library() is None or logits.dtype is not torch.float32 or not (logits.is_cpu and target.is_cpu):
        return False
    return 0 < logits.shape[2] <= _MOST_CLASSES and logits.numel() > 0 and not torch.is_autocast_enabled("cpu")


def _compute(logits: Tensor, target: Tensor, smoothing: Tensor, gradients: Tensor | None) -> Tensor | None:
    logits, target = logits.contiguous(), target.contiguous()
    losses = logits.new_empty(len(logits))
    room = logits.new_empty(logits.shape[2] * _LONGEST_VECTOR)
    tensors = (logits, target, smoothing, losses, gradients, room)
    pointers = [None if tensor is None else tensor.data_ptr() for tensor in tensors]
    no_class = library().nasflow_cross_entropy(*pointers, *logits.shape)  # type: ignore[union-attr]
    return None if no_class else losses


class _CrossEntropies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, target: Tensor, smoothing: Tensor) -> Tensor | None:
        ctx.gradients = None
        if ctx.needs_input_grad[0]:
            ctx.gradients = torch.empty_like(logits, memory_format=torch.contiguous_format)
        return _compute(logits, target, smoothing, ctx.gradients)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.gradients * grads[0].view(-1, 1, 1), None, None
