"""A running average of a member's weights, which is what it is validated by and exported with."""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn


class Average:
    """An exponential moving average of the parameters that an optimizer trains; buffers are not averaged.

    Like torch's `AveragedModel`, it begins with the weights after the first step. In a unit of several members its
    tensors are rows of stacks.

    Args:
        decay: the share of the average that a step keeps, from 0 to below 1; None for no average.

    Attributes:
        tensors: the averages by parameter.
        share: of the weights in the average after a step; None for no average.
        is_due: whether optimizers that it watches have made steps since.
    """

    def __init__(self, decay: float | None):
        self.share = None if decay is None else 1 - decay
        self.tensors: dict[nn.Parameter, torch.Tensor] = {}
        self.is_due = self._is_swapped = False

    @property
    def is_on(self) -> bool:
        """Whether the weights are averaged."""
        return self.share is not None

    def watch(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Notice the steps of optimizers that a module makes by hand, of which some are not counted."""

        def note(*_: Any) -> None:
            self.is_due = True

        for optimizer in optimizers if self.is_on else ():
            if hasattr(optimizer, "_optimizer_step_post_hooks"):  # not in a wrapper that leaves out torch's __init__
                optimizer.register_step_post_hook(note)

    def settle(self, optimizers: Iterable[torch.optim.Optimizer], stepped: bool = False) -> None:
        """Take the weights if the optimizers have stepped."""
        if stepped or self.is_due:
            self.update(optimizers)

    @torch.no_grad()
    def update(self, optimizers: Iterable[torch.optim.Optimizer]) -> None:
        """Take the weights after a step of the optimizers."""
        self.is_due = False
        if self.share is None:
            return
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        parameters = dict.fromkeys(parameter for group in groups for parameter in group["params"])
        trained = [p for p in parameters if p.requires_grad or p in self.tensors]
        old = [parameter for parameter in trained if parameter in self.tensors]
        move_averages([self.tensors[parameter] for parameter in old], [p.detach() for p in old], self.share)
        self.tensors.update({p: p.detach().clone() for p in trained if p not in self.tensors})

    def swap(self, averaged: bool) -> None:
        """Put the averages in the place of the weights, or the weights back in theirs; nothing if they are there."""
        is_due, self._is_swapped = averaged is not self._is_swapped, averaged
        if is_due and self.tensors:  # of most members there are none
            self._exchange()

    @torch.no_grad()
    def _exchange(self) -> None:
        for parameter, average in self.tensors.items():
            weights = parameter.detach().clone()
            parameter.copy_(average)
            average.copy_(weights)

    def split(self, module: nn.Module, weights: dict[str, Any]) -> dict[str, Any]:
        """Put the averages into a state dict; return, by name, the weights that training goes on with."""
        if not self.tensors:
            return {}
        named = [(name, self.tensors.get(p)) for name, p in module.named_parameters(remove_duplicate=False)]
        own = {name: weights[name] for name, average in named if average is not None and name in weights}
        weights.update({name: average for name, average in named if name in own})
        return own

    def load(self, module: nn.Module, weights: dict[str, Any], own: dict[str, Any]) -> None:
        """Go on with the averages in a state dict that was split; the module has its `own` weights already."""
        self._is_swapped = False
        named = [(name, parameter) for name, parameter in module.named_parameters() if name in own]
        self.tensors = {p: weights[name].to(p, copy=True) for name, p in named}


def move_averages(
    averages: list[torch.Tensor], weights: list[torch.Tensor], share: float | Sequence[torch.Tensor]
) -> None:
    """Move averages towards weights by a share of their distance.

    Each operation rounds every element by itself. `lerp_` may do otherwise in the last few of a tensor, which depend on
    how many members are in a stack.
    """
    if averages:
        ways = torch._foreach_sub(weights, averages)
        torch._foreach_mul_(ways, share)  # type: ignore[arg-type]
        torch._foreach_add_(averages, ways)
