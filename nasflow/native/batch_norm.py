"""Batch norm."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from nasflow.native.channel_matrix import line_of, lines_in
from nasflow.native.library import library
from nasflow.native.program import ACTIVATIONS


class Statistics(NamedTuple):
    """Statistics of a batch by channel: means, and scales (one over the standard deviation)."""

    mean: Tensor
    scale: Tensor


def batch_statistics(
    x: Tensor, running: tuple[Tensor, Tensor] | None, rates: tuple[float, float], into: Statistics
) -> bool:
    """Compute the statistics of `[B, C]`, or of images `[B, C, H, W]` channels last.

    Args:
        x: the batch, of more than one line.
        running: mean and variance over batches, which are updated.
        rates: momentum and eps.
        into: where the results are written, `[C]` each.

    Returns:
        False, with nothing done, if no kernel fits.
    """
    functions, line = library(), line_of(x)
    if functions is None or line is None or not _fit(x, *(running or ()), *into) or lines_in(x) < 2:
        return False
    kept = (None, None) if running is None else (running[0].data_ptr(), running[1].data_ptr())
    own = (into.mean.data_ptr(), into.scale.data_ptr())
    functions.nasflow_batch_statistics(x.data_ptr(), line, *kept, *own, lines_in(x), x.shape[1], *rates)
    return True


def kept_statistics(x: Tensor, running: tuple[Tensor, Tensor], eps: float, into: Statistics) -> bool:
    """Compute what replaces the batch's statistics in evaluation; arguments and result as for `batch_statistics`."""
    if library() is None or line_of(x) is None or not _fit(x, *running, *into):
        return False
    into.mean.copy_(running[0])
    torch.rsqrt(running[1] + eps, out=into.scale)
    return True


def normalize(
    activation: str | None, x: Tensor, of_channels: Sequence[Tensor], channels: tuple[int, int], out: Tensor
) -> bool:
    """Normalize some channels of `x`, then apply an activation (one of `ACTIVATIONS`, None for none).

    Args:
        of_channels: means, scales, weights and biases `[C]`, as for `batch_statistics`.
        channels: the first of these channels, and the one after the last.
        out: where the result is written, in any layout that `x` may have.

    Returns:
        False, with nothing done, if no kernel fits.
    """
    functions, line, out_line = library(), line_of(x), line_of(out)
    known = activation is None or activation in ACTIVATIONS
    if functions is None or line is None or out_line is None or not known or not _fit(x, out, *of_channels):
        return False
    kind = -1 if activation is None else ACTIVATIONS.index(activation)
    start, stop = channels
    skipped = start * x.element_size()
    own = [tensor.data_ptr() + skipped for tensor in of_channels]
    functions.nasflow_normalize(
        *(kind, x.data_ptr() + skipped, line, *own, out.data_ptr(), out_line, lines_in(x), stop - start)
    )
    return True


def batch_norm_backward(
    grad: Tensor, x: Tensor, weight: Tensor, statistics: Statistics
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the gradients of `x`, `weight` and `bias`; None if no kernel fits.

    Args:
        statistics: those of `x`.
    """
    functions, grad_line, x_line = library(), line_of(grad), line_of(x)
    if functions is None or grad_line is None or x_line is None or not _fit(grad, x, weight, *statistics):
        return None
    x_grad, weight_grad, bias_grad = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(weight)
    x_grad_line = line_of(x_grad)
    assert x_grad_line is not None  # noqa: S101 - laid out as x is, or dense in the same order
    mean, scale = statistics
    functions.nasflow_batch_norm_backward(
        *(grad.data_ptr(), grad_line, x.data_ptr(), x_line, weight.data_ptr(), mean.data_ptr(), scale.data_ptr()),
        *(x_grad.data_ptr(), x_grad_line, weight_grad.data_ptr(), bias_grad.data_ptr(), lines_in(x), x.shape[1]),
    )
    return x_grad, weight_grad, bias_grad


def _fit(*tensors: Tensor) -> bool:
    return all(tensor.dtype is torch.float32 and tensor.is_cpu for tensor in tensors)
