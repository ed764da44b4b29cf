"""Compare whole steps of members in a unit with steps by themselves, on twins of the members.

Twins, because a step of the user's may change anything: lists, counters, metrics. Weights are changed a little first,
because weights that are zero, or equal to others, hide mistakes. Several steps are tried, without updates: the merged
model is recorded in the first, and replayed in the others.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from nasflow.job import activity
from nasflow.training.member.batches import copied
from nasflow.training.member.member import Member
from nasflow.training.member.own_step import loss_in
from nasflow.training.unit.comparison import in_full_precision, move_weights, nudge_weights
from nasflow.training.unit.differences import gradient_distances, unlike_gradients, unlike_values
from nasflow.training.unit.lockstep.member_state import whole_step
from nasflow.training.unit.lockstep.unit import LockstepUnit
from nasflow.training.unit.member_step import Step

_ATTEMPTS = 3  # if rounding moves a value across a ReLU's corner, another move of the weights helps

MakeUnit = Callable[[list[Member]], LockstepUnit]


def differences(
    members: Sequence[Member], asked: Sequence[Member], make: MakeUnit, batch: Any, steps: int
) -> dict[Member, str]:
    """Return the members for which a unit computes something else than they do by themselves, and the difference.

    Args:
        members: of the unit; they do not change.
        asked: those to compare.
        make: returns a unit of the members' twins.
        batch: that all share.
        steps: how many are tried, at least two.
    """
    found: dict[Member, str] = {}
    with in_full_precision(next(iter(members[0].module.parameters())).device):
        for attempt in range(_ATTEMPTS):
            found = _differences(members, asked, make, batch, steps=steps, attempt=attempt)
            asked = list(found)
            if not asked:
                break
    return found


def _differences(
    members: Sequence[Member], asked: Sequence[Member], make: MakeUnit, batch: Any, *, steps: int, attempt: int
) -> dict[Member, str]:
    twins = {member: member.twin() for member in members}
    for twin in twins.values():
        move_weights(_trained(twin), attempt)
    found: dict[Member, str] = {}
    owns: dict[Member, list[Step]] = {}
    for member in asked:
        own = _own_steps(twins[member].twin(), batch, steps)
        if isinstance(own, str):
            found[member] = own
        else:
            owns[member] = own
    unit = make(list(twins.values()))
    fused = [unit.try_step(batch, index) for index in range(steps)]
    for member, its in owns.items():
        twin = twins[member]
        for alone, tried in zip(its, fused, strict=True):
            text = _difference(alone, tried[twin], twin, batch) if twin in tried else "fused, it fails"
            if text and member not in found:
                found[member] = unit.wrong.get(twin, text)
    return found


def _difference(own: Step, fused: Step, twin: Member, batch: Any) -> str:
    """Describe the first difference; empty if there is none that rounding does not explain."""
    if own.buffers.keys() != fused.buffers.keys():
        return f"it logs {sorted(fused.buffers.keys() ^ own.buffers.keys())} in one of both only"
    text = unlike_values(own, fused)
    if text or not unlike_gradients(own, fused):
        return text
    return unlike_gradients(own, fused, _rounding(twin, batch))


def _rounding(twin: Member, batch: Any) -> dict[str, float]:
    """Return how far a member's own gradients move if its weights move by a unit in the last place, by name."""
    other = twin.twin()
    before = _own_steps(twin.twin(), batch, 1)
    nudge_weights(_trained(other), 1.0)
    after = _own_steps(other, batch, 1)
    if isinstance(before, str) or isinstance(after, str):
        return {}
    return gradient_distances(before[0], after[0])


def _own_steps(twin: Member, batch: Any, steps: int) -> list[Step] | str:
    """Return steps of a member by itself, without updates; or what it raises."""
    try:
        return [_own_step(twin, batch, index) for index in range(steps)]
    except (Exception, SystemExit) as error:
        return f"by itself it raises {type(error).__name__}"


def _own_step(twin: Member, batch: Any, index: int) -> Step:
    trained = _trained(twin)
    gradients: Mapping[Any, torch.Tensor | None] = {}
    with activity.running(twin.trial), twin.rng, torch.enable_grad():
        loss = loss_in(twin.call_step("training_step", copied(batch), index))
        if loss is not None:
            grads = torch.autograd.grad(loss, trained, allow_unused=True)
            gradients = dict(zip(trained, grads, strict=True))
    for parameter in trained:  # by itself, the next step can see the gradients of this one; in a unit it can't
        grad = gradients.get(parameter)
        parameter.grad = None if grad is None else grad.clone()
    return whole_step(twin, torch.zeros(()) if loss is None else loss.detach(), gradients)


def _trained(twin: Member) -> list[Any]:
    return [parameter for parameter in twin.module.parameters() if parameter.requires_grad]
