"""What the model of a member reads in a step, found by watching a step of the member's twin."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from nasflow.job import activity
from nasflow.training.member.batches import copied
from nasflow.training.member.member import Member
from nasflow.training.member.own_step import loss_in
from nasflow.training.unit.lockstep.pausing import MODEL, Call, PausingStep, proxied

_MOST_STEPS = 8  # for members that skip batches


@dataclass(frozen=True)
class Reading:
    """What a member's model reads.

    Attributes:
        x: the first input, `[B, ...]`.
        shared: whether members that are alike in `key` read the same batch; otherwise each reads another.
        key: equal for members that can be fused, if their models can.
        steps: how many steps it takes until one has a loss.
    """

    x: torch.Tensor
    shared: bool = True
    key: Hashable = ()
    steps: int = 1

    def fits(self, call: Call, batch: "HandedBatch") -> bool:
        """Whether a unit of such members can answer a call."""
        x = call.x
        alike = x.shape[1:] == self.x.shape[1:] and x.dtype == self.x.dtype and x.device == self.x.device
        return alike and x.ndim == self.x.ndim and (not self.shared or batch.place_of(x) is not None)


class HandedBatch:
    """A copy of a batch that a step was given.

    Attributes:
        values: the copy.
    """

    def __init__(self, batch: Any):
        self.values = copied(batch)
        self._at: Mapping[int, tuple[int, torch.Tensor, int]] = {
            leaf.untyped_storage().data_ptr(): (place, leaf, leaf._version) for place, leaf in _tensors(self.values)
        }

    def place_of(self, x: torch.Tensor) -> Hashable | None:
        """Return which part of the batch `x` is a view of; None if of none, or if the step has written into it."""
        found = self._at.get(x.untyped_storage().data_ptr())
        if found is None or x.requires_grad or x.is_inference():
            return None
        place, leaf, version = found
        return None if leaf._version != version else (place, x.shape, x.stride(), x.storage_offset(), x.dtype)


def read(member: Member, batch: Any) -> Reading | str:
    """Return what a member's model reads in a training step, or why it can't be fused with others."""
    model = member.module._modules.get(MODEL)
    if not isinstance(model, nn.Module):
        return f"{type(member.module).__name__} has no layer 'self.{MODEL}'"
    try:
        with activity.running(member.trial):
            twin = member.twin()
            for index in range(_MOST_STEPS):
                loss, calls = _watched(twin, batch, index)
                if loss is not None:
                    break
            else:
                return f"its training_step has no loss in {_MOST_STEPS} steps"
    except (Exception, SystemExit) as error:  # of the member's own code, or because it can't be copied
        return f"its step can't be tried on a copy: {type(error).__name__}"
    if not calls:
        return f"its training_step does not call self.{MODEL} with one tensor"
    places = [place for _, place in calls]
    key = tuple((call.x.shape, call.x.dtype, call.grad, call.training, place) for call, place in calls)
    return Reading(calls[0][0].x.detach(), None not in places, (type(member.module), key), index + 1)


def _watched(twin: Member, batch: Any, index: int) -> tuple[Any, list[tuple[Call, Hashable | None]]]:
    """Return the loss of a step, and the calls of its model with what of the batch each reads."""
    calls: list[tuple[Call, Hashable | None]] = []
    handed = HandedBatch(batch)

    def watch(call: Call) -> bool:
        calls.append((call, handed.place_of(call.x)))
        return False

    step = PausingStep(lambda: twin.call_step("training_step", handed.values, index), watch)
    model: Any = twin.module.model
    with twin.rng, torch.enable_grad(), proxied(twin.module, model):
        return loss_in(step.switch()), calls


def _tensors(values: Any) -> Iterator[tuple[int, torch.Tensor]]:
    for place, leaf in enumerate(tree_leaves(values)):
        if isinstance(leaf, torch.Tensor) and not leaf.is_inference():
            yield place, leaf
