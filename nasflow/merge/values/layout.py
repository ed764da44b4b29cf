"""Layouts of the values of several members, and conversions between them.

`B` is the batch, `n` the members (rows) of a value, `C` a member's channels.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch


class Layout(Enum):
    """How a value's rows are arranged."""

    STACK = "stack"  # [n, B, ...]: linear algebra
    CHANNELS = "channels"  # [B, n*C, ...], images channels last: convolutions, batch norm, pooling
    LIST = "list"  # n tensors [B, ...]: operations that run member by member
    SHARED = "shared"  # one tensor [B, ...] that all rows read
    SCALAR = "scalar"  # one plain value that all rows read, derived from shapes


def convert(value: Any, rows: int, source: Layout, target: Layout) -> Any:
    """Return the same rows in another layout."""
    if source is target or source is Layout.SCALAR or value is None:
        return value
    if isinstance(value, tuple) or (source is Layout.LIST and not isinstance(value[0], torch.Tensor)):
        return _convert_items(value, rows, source, target)
    match source, target:
        case Layout.STACK, Layout.CHANNELS:
            return dense_images(value.transpose(0, 1).flatten(1, 2))
        case Layout.STACK, Layout.LIST:
            return list(value.unbind(0))
        case Layout.CHANNELS, Layout.STACK:
            return value.unflatten(1, (rows, -1)).transpose(0, 1)
        case Layout.CHANNELS, Layout.LIST:
            return list(value.chunk(rows, 1))
        case Layout.LIST, Layout.STACK:
            return torch.stack(value)
        case Layout.LIST, Layout.CHANNELS:
            return dense_images(torch.cat(value, 1))
        case Layout.SHARED, Layout.STACK:
            return value.expand(rows, *value.shape)
        case Layout.SHARED, Layout.CHANNELS:
            return dense_images(torch.cat([value] * rows, 1))
        case Layout.SHARED, Layout.LIST:
            return [value] * rows
    raise ValueError(f"there is no conversion from {source} to {target}")


def _convert_items(value: Any, rows: int, source: Layout, target: Layout) -> Any:
    """`convert` for rows that are tuples, or None: a tuple of values, or in a list a tuple for each row."""
    if source is Layout.LIST:
        if value[0] is None:
            return None
        return tuple(convert(list(items), rows, source, target) for items in zip(*value, strict=True))
    items = [convert(item, rows, source, target) for item in value]
    if target is not Layout.LIST:
        return tuple(items)
    return list(zip(*([None] * rows if item is None else item for item in items), strict=True))


def split(value: Any, sizes: Sequence[int], rows: int, layout: Layout) -> Sequence[Any]:
    """Split a value into runs of rows. The backward of `Tensor.split` is one `cat`; slices would each add zeros."""
    if value is None:
        return [None] * len(sizes)
    if isinstance(value, tuple):
        return list(zip(*(split(item, sizes, rows, layout) for item in value), strict=True))
    if layout is Layout.LIST:
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [value[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    pieces: Sequence[Any]
    if layout is Layout.CHANNELS:
        channels = value.shape[1] // rows
        pieces = _SplitChannels.apply(value, [size * channels for size in sizes])  # type: ignore[no-untyped-call]
    else:
        pieces = value.split(list(sizes))
    return pieces


def join(pieces: Sequence[Any], layout: Layout, whole: Sequence[bool] = ()) -> Any:
    """Join runs of rows into one value; `whole` says which of them are complete values, not runs of a larger one."""
    if len(pieces) == 1 or pieces[0] is None:
        return pieces[0]
    if isinstance(pieces[0], tuple):
        return tuple(join(items, layout) for items in zip(*pieces, strict=True))
    if layout is Layout.LIST:
        return [row for piece in pieces for row in piece]
    if layout is Layout.CHANNELS:
        return _JoinChannels.apply(whole or [True] * len(pieces), *pieces)  # type: ignore[no-untyped-call]
    return torch.cat(list(pieces))


def dense_images(value: torch.Tensor) -> torch.Tensor:
    """Return images `[B, C, H, W]` channels last, where grouped convolutions are several times faster on CPU."""
    if value.ndim != 4:
        return value.contiguous()
    dense = value.contiguous(memory_format=torch.channels_last)
    # One image may keep an odd stride of the batch, with which torch 2.13 computes wrong gradients of weights.
    whole = dense.stride(0) == dense[0].numel()
    return dense if whole else dense.clone(memory_format=torch.channels_last)


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return images channels last; those with one channel get strides for which torch returns channels last."""
    if x.ndim != 4:
        return x
    if x.shape[1] == 1 and x.is_contiguous():
        _, _, height, width = x.shape
        return x.as_strided(x.shape, (height * width, 1, width, 1))
    return dense_images(x)


class _SplitChannels(torch.autograd.Function):
    """Splits channels into views. The backward copies all gradients into one dense tensor, whatever their strides."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, sizes: list[int]) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.sizes, ctx.like = sizes, value.new_empty(0).expand(0)
        ctx.shape = value.shape
        runs: tuple[torch.Tensor, ...] = value.split(sizes, 1)
        return runs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor, None]:
        images = len(ctx.shape) == 4
        layout = torch.channels_last if images else torch.contiguous_format
        whole = torch.empty(ctx.shape, dtype=ctx.like.dtype, device=ctx.like.device, memory_format=layout)
        for place, grad in zip(whole.split(ctx.sizes, 1), grads, strict=True):
            if grad is None:
                place.zero_()
            else:
                place.copy_(grad)
        return whole, None


class _JoinChannels(torch.autograd.Function):
    """Joins runs of channels in one dense tensor. The backward makes the gradient of a complete value dense again."""

    @staticmethod
    def forward(ctx: Any, whole: Sequence[bool], *pieces: torch.Tensor) -> torch.Tensor:
        ctx.whole, ctx.sizes = whole, [piece.shape[1] for piece in pieces]
        return dense_images(torch.cat(pieces, 1))

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        runs = grads[0].split(ctx.sizes, 1)
        return (None, *(dense_images(run) if alone else run for run, alone in zip(runs, ctx.whole, strict=True)))
