"""Gradient clipping of several members at once, each as torch would clip it by itself."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Literal

import torch


@dataclass(frozen=True)
class Clip:
    """How a member's gradients are clipped.

    Attributes:
        limit: the largest norm of all its gradients together, or the largest value of each of their elements.
        algorithm: which of the two, norm or value.
    """

    limit: float
    algorithm: Literal["norm", "value"] = "norm"

    def apply(self, parameters: Iterable[torch.Tensor]) -> None:
        """Clip the gradients of one member."""
        clip = torch.nn.utils.clip_grad_norm_ if self.algorithm == "norm" else torch.nn.utils.clip_grad_value_
        with_grad = [parameter for parameter in parameters if parameter.grad is not None]
        if with_grad:  # clip_grad_value_ does not accept an empty list
            clip(with_grad, self.limit)


class StackedClip:
    """Clips the gradients of members that have their parameters stored side by side.

    A member's norm is summed parameter by parameter, so that its bits do not depend on other members.

    Args:
        clips: one per member.
        owners: for each stack, the member of each row; None for rows that are not clipped.
    """

    def __init__(self, clips: Sequence[Clip | None], owners: Sequence[Sequence[int | None]]):
        of = [[None if owner is None else clips[owner] for owner in rows] for rows in owners]
        self._owners = owners
        self._norms = [[clip.limit if clip and clip.algorithm == "norm" else None for clip in rows] for rows in of]
        self._values = [
            [clip.limit if clip and clip.algorithm == "value" else math.inf for clip in rows] for rows in of
        ]

    def prepare(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Prepare for gradients like these: which of them exist, and their dtypes."""
        present = [(i, grad) for i, grad in enumerate(grads) if grad is not None]
        self._limits = [
            (i, grad.new_tensor(self._values[i]).unsqueeze(1))
            for i, grad in present
            if any(limit < math.inf for limit in self._values[i])
        ]
        self._by_norm = [i for i, _ in present if any(limit is not None for limit in self._norms[i])]
        if self._by_norm:
            self._prepare_norms(grads)

    def _prepare_norms(self, grads: Sequence[torch.Tensor | None]) -> None:
        rows = [pair for i in self._by_norm for pair in zip(self._owners[i], self._norms[i], strict=True)]
        limits = {owner: limit for owner, limit in rows if limit is not None}
        places: dict[int | None, list[int]] = {owner: [] for owner in limits}
        for place, (owner, limit) in enumerate(rows):
            if limit is not None:
                places[owner].append(place)
        depth = max(map(len, places.values()))
        padded = [of + [len(rows)] * (depth - len(of)) for of in places.values()]  # behind all rows there is a 0
        column = {owner: i for i, owner in enumerate(limits)}
        columns = [
            len(limits) if limit is None else column[owner] for owner, limit in rows
        ]  # and behind all factors a 1
        device = next(grad.device for grad in grads if grad is not None)
        self._places = torch.tensor(padded, device=device).t().contiguous()
        self._columns = torch.tensor(columns, device=device)
        self._most = torch.tensor(list(limits.values()), dtype=torch.float64, device=device)
        self._sizes = [len(self._owners[i]) for i in self._by_norm]

    def apply(self, grads: Sequence[torch.Tensor | None]) -> None:
        """Clip the gradients in place, given as a matrix `[n, k]` per stack."""
        if self._by_norm:
            self._clip_norms([grad for i in self._by_norm if (grad := grads[i]) is not None])
        for i, limits in self._limits:
            if (grad := grads[i]) is not None:
                grad.clamp_(-limits, limits)

    def _clip_norms(self, grads: list[torch.Tensor]) -> None:
        norms = torch.cat([*(torch.linalg.vector_norm(grad, dim=1) for grad in grads), grads[0].new_zeros(1)])
        totals = reduce(torch.add, norms.square()[self._places].unbind(0)).sqrt()
        factors = (self._most.to(totals.dtype) / (totals + 1e-6)).clamp(max=1.0)
        column = torch.cat([factors, factors.new_ones(1)])[self._columns].unsqueeze(1)
        rows = torch.split(column, self._sizes)
        torch._foreach_mul_(grads, [row.to(grad.dtype) for row, grad in zip(rows, grads, strict=True)])
