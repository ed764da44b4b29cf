"""What a unit relies on between the steps of its members, and all that a member's step has computed and changed."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from nasflow.training.member.member import Member
from nasflow.training.unit.member_step import Step


def whole_step(member: Member, loss: torch.Tensor, gradients: Mapping[nn.Parameter, torch.Tensor | None]) -> Step:
    """Return what a member's step has computed and changed, with the gradients of all its parameters."""
    trained = {name: parameter for name, parameter in member.module.named_parameters() if parameter.requires_grad}
    changed = {name: buffer.detach().clone() for name, buffer in member.module.named_buffers()}
    precision = next(iter(trained.values())).dtype  # in which logged numbers were computed, before they were summed up
    for name, (total, weight) in member.book.sums().items():
        changed[f"its logged '{name}'"] = torch.tensor([total, weight], dtype=precision)
    grads = {name: gradients.get(parameter) for name, parameter in trained.items()}
    return Step(loss, loss, grads, changed, member.rng.position())


def has_own_code(member: Member) -> bool:
    """Whether hooks or schedules of the member's own run between its steps, which may change anything."""
    return bool(member.hooks.names) or member.fitting.may_draw


def is_any(grad: torch.Tensor | None) -> bool:
    """Whether there is a gradient that is not zero."""
    return grad is not None and bool(grad.any())


def frozen(part: nn.Module) -> Iterator[torch.Tensor]:
    """Yield what operations of several members may share."""
    yield from (parameter for parameter in part.parameters() if not parameter.requires_grad)
    yield from part.buffers()


def hyper_parameters(member: Member) -> list[list[Any]]:
    """Return the hyper-parameters of each group of a member's optimizer."""
    groups = member.fitting.optimizer.param_groups
    return [[value for name, value in group.items() if name != "params"] for group in groups]
