"""Averages of the weights of several members, updated as one."""

from collections.abc import Sequence

import torch

from nasflow.training.member.average import Average, move_averages
from nasflow.training.optim.stacked import Stack


class StackedAverages:
    """Updates the averages of members with the bits that each would have by itself.

    Averages are stored side by side like the weights, and each member's own are views of the rows, so that a member
    can leave at any time and go on with them.

    Args:
        averages: the members' own.
        optimizers: theirs, which say what is averaged.
        stacks: of the weights.
    """

    def __init__(
        self, averages: Sequence[Average], optimizers: Sequence[torch.optim.Optimizer], stacks: Sequence[Stack]
    ):
        self._averages, self._optimizers, self._stacks = averages, optimizers, stacks
        self._is_on = any(average.is_on for average in averages)  # of all members, or of none
        self._laid: tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]] | None = None

    @torch.no_grad()
    def update(self) -> None:
        """Take the weights after a step of all members."""
        if not self._is_on:
            return
        if self._laid is not None:
            move_averages(*self._laid)
            return
        for average, optimizer in zip(self._averages, self._optimizers, strict=True):
            average.update([optimizer])
        self._lay()

    def _lay(self) -> None:
        """Store the averages side by side."""
        self._laid = averages, weights, shares = [], [], []
        for stack in self._stacks:
            owned = list(zip(stack.members, stack.parameters, strict=True))
            averaged = [parameter in self._averages[member].tensors for member, parameter in owned]
            if not stack.rows or not all(averaged):  # each row by itself
                for (member, parameter), is_averaged in zip(owned, averaged, strict=True):
                    if is_averaged:
                        averages.append(self._averages[member].tensors[parameter])
                        weights.append(parameter.detach())
                        shares.append(averages[-1].new_tensor(self._averages[member].share))
                continue
            together = torch.empty_like(stack.tensor)
            for place, (member, parameter) in zip(together, owned, strict=True):
                self._averages[member].tensors[parameter] = place.copy_(self._averages[member].tensors[parameter])
            averages.append(together)
            weights.append(stack.tensor.detach())
            column = together.new_tensor([self._averages[member].share for member in stack.members])
            shares.append(column.view(-1, *[1] * (together.ndim - 1)))
