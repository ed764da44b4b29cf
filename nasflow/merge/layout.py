"""How the values of several members lie together, and the ways from one layout to another.

`B` is the batch, `n` the members (rows) of a value, `C` a member's channels.
"""

from collections.abc import Sequence
from enum import Enum
from typing import Any

import torch


class Layout(Enum):
    """Where a value's rows are."""

    STACK = "stack"  # [n, B, ...]: linear algebra
    CHANNELS = "channels"  # [B, n*C, ...], images channels last: convolutions, batch norm, pooling
    LIST = "list"  # n tensors [B, ...]: what runs member by member
    SHARED = "shared"  # one tensor [B, ...] that all rows read
    SCALAR = "scalar"  # one plain value that all rows read, from shapes


def convert(value: Any, rows: int, source: Layout, target: Layout) -> Any:
    """The same rows in another layout."""
    if source is target or source is Layout.SCALAR or value is None:
        return value
    if isinstance(value, tuple):
        return tuple(convert(item, rows, source, target) for item in value)
    if source is Layout.LIST and isinstance(value[0], tuple):
        return tuple(convert(list(items), rows, source, target) for items in zip(*value, strict=True))
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
    raise ValueError(f"there is no way from {source} to {target}")


def split(value: Any, sizes: Sequence[int], rows: int, layout: Layout) -> Sequence[Any]:
    """Runs of rows, one after the other. `Tensor.split` has one `cat` as its backward; slices would each zero-fill."""
    if value is None:
        return [None] * len(sizes)
    if isinstance(value, tuple):
        return list(zip(*(split(item, sizes, rows, layout) for item in value), strict=True))
    if layout is Layout.LIST:
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        return [value[start : start + size] for start, size in zip(starts, sizes, strict=True)]
    if layout is Layout.CHANNELS:
        channels = value.shape[1] // rows
        pieces: Sequence[Any] = value.split([size * channels for size in sizes], 1)
        return pieces
    pieces = value.split(list(sizes))
    return pieces


def join(pieces: Sequence[Any], layout: Layout) -> Any:
    """Runs of rows in one value."""
    if len(pieces) == 1 or pieces[0] is None:
        return pieces[0]
    if isinstance(pieces[0], tuple):
        return tuple(join(items, layout) for items in zip(*pieces, strict=True))
    if layout is Layout.LIST:
        return [row for piece in pieces for row in piece]
    return torch.cat(list(pieces), 1 if layout is Layout.CHANNELS else 0)


def dense_images(value: torch.Tensor) -> torch.Tensor:
    """Images `[B, C, H, W]` channels last, in which grouped convolutions run several times faster on CPU."""
    if value.ndim == 4:
        return value.contiguous(memory_format=torch.channels_last)
    return value.contiguous()
