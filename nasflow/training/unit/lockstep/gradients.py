"""Gradients in stacks, as hooks of the members see them: in `grad` of their own parameters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import nn

from nasflow.training.optim.stacked import Stack


@contextmanager
def shown(parameters: Sequence[tuple[nn.Parameter, Stack]], idle: set[nn.Parameter]) -> Iterator[None]:
    """Within this, parameters have their gradients. Afterwards, what was changed in them is in their stacks.

    Args:
        parameters: each with its stack.
        idle: the parameters in stacks that have no gradient; it is brought up to date.
    """
    rows: dict[nn.Parameter, torch.Tensor] = {}
    place = 0
    for parameter, stack in parameters:
        if stack.rows and stack.tensor.grad is not None:
            # the parameters of a member are mostly in one place of their stacks
            if place >= len(stack.parameters) or stack.parameters[place] is not parameter:
                place = next(place for place, other in enumerate(stack.parameters) if other is parameter)
            rows[parameter] = stack.tensor.grad[place]
            parameter.grad = None if parameter in idle else rows[parameter]
    yield
    for parameter, row in rows.items():
        if parameter.grad is None:
            idle.add(parameter)
            row.zero_()  # what later batches of the step add to
        elif parameter.grad is not row:
            row.copy_(parameter.grad)
            idle.discard(parameter)
        parameter.grad = None
