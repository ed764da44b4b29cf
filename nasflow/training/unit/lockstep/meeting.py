"""Carries gradients across a meeting: what several members pass goes in as rows of one tensor, and comes out again."""

from collections.abc import Callable, Sequence
from typing import Any

import torch


class Meeting:
    """One call of a part for several members.

    Args:
        reach: called in the backward with the rows that have a gradient.
    """

    def __init__(self, reach: Callable[[Sequence[int]], None]):
        self._reach = reach
        self._rows: set[int] = set()

    def take_in(self, rows: Sequence[torch.Tensor]) -> torch.Tensor:
        """Return the rows as one tensor. In the backward, rows whose output has no gradient get none."""
        stacked: torch.Tensor = _TakeIn.apply(self, *rows)  # type: ignore[no-untyped-call]
        return stacked

    def hand_out(self, outputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return each member's output, which it may write into."""
        if outputs.requires_grad:
            handed: tuple[torch.Tensor, ...] = _HandOut.apply(outputs, self)  # type: ignore[no-untyped-call]
            return handed
        return tuple(outputs.clone()) if outputs.stride(0) == 0 else outputs.unbind(0)

    def reach(self, rows: Sequence[int]) -> None:
        """Note the rows that the backward has reached."""
        self._rows.update(rows)
        self._reach(rows)

    def is_reached(self, row: int) -> bool:
        """Whether the backward has reached the row."""
        return row in self._rows


class _TakeIn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, meeting: Meeting, *rows: torch.Tensor) -> torch.Tensor:
        ctx.set_materialize_grads(False)
        ctx.meeting = meeting
        return torch.stack(rows)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor | None) -> tuple[torch.Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        if grad is None:
            return (None, *[None] * len(needed))
        meeting: Meeting = ctx.meeting
        return (None, *[grad[i] if needs and meeting.is_reached(i) else None for i, needs in enumerate(needed)])


class _HandOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, outputs: torch.Tensor, meeting: Meeting) -> tuple[torch.Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.meeting, ctx.form = meeting, (outputs.shape, outputs.dtype, outputs.device)
        return tuple(row.clone() for row in outputs)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor, None]:
        ctx.meeting.reach([row for row, grad in enumerate(grads) if grad is not None])
        shape, dtype, device = ctx.form
        whole = torch.zeros(shape, dtype=dtype, device=device)
        for place, grad in zip(whole, grads, strict=True):
            if grad is not None:
                place.copy_(grad)
        return whole, None
