"""The loss scales of several members in half precision, each of which may skip a step."""

from collections.abc import Collection, Sequence

import torch
from torch import nn

from nasflow.training.optim.stacked import Stack


class StackedScales:
    """Divides gradients that are stored side by side, each member's by the scale of its losses.

    Args:
        stacks: of the weights.
    """

    def __init__(self, stacks: Sequence[Stack]):
        self._stacks = stacks
        self._placed: tuple[list[float], torch.Tensor] | None = None

    def placed(self, scales: list[float], device: torch.device) -> torch.Tensor:
        """Return scales, one a member, on a device."""
        if self._placed is None or self._placed[0] != scales or self._placed[1].device != device:
            self._placed = scales, torch.tensor(scales, device=device)
        return self._placed[1]

    @torch.no_grad()
    def unscale(self, scales: Sequence[float], idle: Collection[nn.Parameter] = ()) -> dict[int, bool]:
        """Divide all gradients in place.

        Args:
            scales: by member.
            idle: parameters that have no gradient, but are in stacks with others that have one.

        Returns:
            Whether a gradient was not finite, by member; members without any gradient are left out.
        """
        owned, finite = list[tuple[int, nn.Parameter]](), list[torch.Tensor]()
        for stack in self._stacks:
            if (grad := stack.tensor.grad) is None:
                continue
            owned += zip(stack.members, stack.parameters, strict=True)
            finite.append(torch.isfinite(grad.reshape(len(stack.members), -1)).all(1))
            inverse = grad.new_tensor([1 / scales[member] for member in stack.members])
            grad.mul_(inverse.view(-1, *[1] * (grad.ndim - 1)) if stack.rows else inverse[0])
        flags = torch.cat(finite).tolist() if finite else []
        found: dict[int, bool] = {}
        for (member, parameter), is_finite in zip(owned, flags, strict=True):
            if parameter not in idle:
                found[member] = found.get(member, False) or not is_finite
        return found
