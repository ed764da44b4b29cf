"""Compare a unit with its members' own models before its first step.

A step is tried on the next batch, with the mode, dtype and kernels of training, in full precision: once while it is
recorded, once replayed. Outputs, losses, the gradient of every parameter, buffers and the positions of random streams
must agree with those of the members' own models. Weights are changed a little first, because weights that are zero, or
equal to others, hide mistakes. Members with other state (buffers, random streams) are compared in a second step too.
"""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from nasflow.training.member.member import Member
from nasflow.training.unit.differences import gradient_distances, output_distance, unlike_gradients, unlike_values
from nasflow.training.unit.fused import FusedUnit, TriedStep
from nasflow.training.unit.member_step import Step, Subject

_TRIES = 3  # if rounding moves a value across a ReLU's corner, another move of the weights helps
_MOST_UNITS = 1e3  # units in the last place by which rounding may move weights, at most


def differences(
    unit: FusedUnit,
    subjects: Mapping[Member, Subject],
    batch: tuple[torch.Tensor, torch.Tensor],
    asked: Sequence[Member],
) -> dict[Member, str]:
    """Return the members for which the unit computes something else than their own models, and the difference.

    Args:
        unit: a unit of several members, which do not change.
        subjects: all its members.
        batch: inputs and targets.
        asked: the members to compare.
    """
    found: dict[Member, str] = {}
    rehearsal = _Rehearsal(unit, subjects, batch)
    with in_full_precision(batch[0].device):
        for attempt in range(_TRIES):
            with _kept(unit.trained_tensors), rehearsal.unchanged():
                found = rehearsal.differences(asked, 2 * attempt)
            asked = list(found)
            if not asked:
                break
    return found


@dataclass(frozen=True)
class _MergedStep:
    """A unit's results in a step, as a whole and for each compared member."""

    whole: TriedStep
    steps: dict[Member, Step]


class _Rehearsal:
    """Tries steps of a unit and of its members' own models, without updates."""

    def __init__(self, unit: FusedUnit, subjects: Mapping[Member, Subject], batch: tuple[torch.Tensor, torch.Tensor]):
        self._unit, self._subjects, self._batch = unit, subjects, batch
        self._taped = not torch.is_autocast_enabled(batch[0].device.type)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore all members' models and streams afterwards, except trained weights."""
        with ExitStack() as stack:
            for subject in self._subjects.values():
                stack.enter_context(subject.unchanged())
            yield

    def differences(self, asked: Sequence[Member], move: int) -> dict[Member, str]:
        """Return each member's first difference in a step, and in a second step if the member has other state."""
        move_weights(self._unit.trained_tensors, move)
        try:
            recorded, replayed = self._merged(asked), self._merged(asked)
        except Exception:
            if all(isinstance(own, str) for own in map(self._own, asked)):
                return {}  # the batch is the cause: all will fail on it in training too, with the reason
            raise
        owns = {member: self._own(member) for member in asked}
        found = self._unlike(owns, replayed)
        if not replayed.whole.equals(recorded.whole):
            found = self._unlike(owns, recorded) | found
        raising = {member: own for member, own in owns.items() if isinstance(own, str)}
        found |= {member: own for member, own in raising.items() if member not in replayed.whole.failed}
        same = [member for member in asked if member not in found and member not in raising]
        again = [member for member in same if self._subjects[member].has_state]
        if again:
            move_weights(self._unit.trained_tensors, move + 1)
            merged = self._merged(again)
            found |= self._unlike({member: self._own(member) for member in again}, merged)
        return found

    def _merged(self, asked: Sequence[Member]) -> _MergedStep:
        with self.unchanged():
            whole = self._unit.try_step(*self._batch, self._taped)
            states = {member: self._subjects[member].state() for member in asked}
        steps = {}
        for member, state in states.items():
            row = self._unit.row_of(member)
            trained = self._subjects[member].trained
            gradients = {name: whole.gradients.get(parameter) for name, parameter in trained.items()}
            steps[member] = Step(whole.outputs[row], whole.losses[row], gradients, *state)
        return _MergedStep(whole, steps)

    def _own(self, member: Member) -> Step | str:
        """Return a step of the member's own model, or what it raises; the merged step must then fail, too."""
        try:
            return self._subjects[member].own_step(self._batch)
        except (Exception, SystemExit) as error:
            return f"by itself it raises {type(error).__name__}"

    def _unlike(self, owns: Mapping[Member, Step | str], merged: _MergedStep) -> dict[Member, str]:
        """Return the differences by member; members with a failed own step are left out."""
        found = {}
        for member, own in owns.items():
            if isinstance(own, str):
                continue
            its = merged.steps[member]
            text = unlike_values(own, its)
            if not text and unlike_gradients(own, its):
                text = unlike_gradients(own, its, self._rounding(member, output_distance(own, its)))
            if text:
                found[member] = text
        return found

    def _rounding(self, member: Member, distance: float) -> dict[str, float]:
        """Return how far a member's own gradients move if its weights move so that its output moves by `distance`.

        This is far if many values are at the corner of a ReLU, or if large values cancel each other.
        """
        subject, units, found = self._subjects[member], 1.0, dict[str, float]()
        weights = [parameter.detach() for parameter in subject.trained.values()]
        with subject.unchanged():
            before = subject.own_step(self._batch)
        for _ in range(2):
            with subject.unchanged(), _kept(weights):
                nudge_weights(weights, units)
                after = subject.own_step(self._batch)
            found = gradient_distances(before, after)
            units = min(distance / max(output_distance(before, after), 1e-300), _MOST_UNITS)
            if units <= 1:
                break
        return found


@torch.no_grad()
def move_weights(tensors: Iterable[torch.Tensor], step: int) -> None:
    """Move each weight a little, independently of the others, because those of members that left may be NaN."""
    for tensor, ways in _with_ways(tensors, step):
        tensor.add_(ways.mul_(tensor.abs().mul_(0.01).add_(1e-3)))


@torch.no_grad()
def nudge_weights(tensors: Iterable[torch.Tensor], units: float) -> None:
    """Move weights by about this many units in the last place."""
    for tensor, ways in _with_ways(tensors, 0):
        tensor.addcmul_(tensor, ways, value=units * torch.finfo(tensor.dtype).eps)


def _with_ways(tensors: Iterable[torch.Tensor], step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each tensor of weights, and a tensor of its shape with values from -1 to 1 that differ in each step."""
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            places = torch.arange(1, tensor.numel() + 1, device=tensor.device, dtype=torch.float32)
            yield tensor, places.mul_(step + 1).sin_().view(tensor.shape).to(tensor.dtype)


@contextmanager
def _kept(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Restore the tensors' values afterwards."""
    values = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.detach().copy_(value)


@contextmanager
def in_full_precision(device: torch.device) -> Iterator[None]:
    """Use full precision, whatever the training uses."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, enabled=False))
        backends: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul] if device.type == "cuda" else []
        for backend in backends:
            stack.callback(setattr, backend, "allow_tf32", backend.allow_tf32)
            backend.allow_tf32 = False
        yield


def cover(sets: Mapping[Member, set[Hashable]]) -> list[Member]:
    """Return a few members with sets that together have all elements, found greedily."""
    found: list[Member] = []
    missing = set().union(*sets.values())
    while missing:
        found.append(max(sets, key=lambda member: len(missing & sets[member])))
        missing -= sets[found[-1]]
    return found
