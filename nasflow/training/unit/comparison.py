"""Whether a unit does to its members what their own models do: looked at before its first step.

A step is rehearsed on the batch that comes, in the mode, type and kernels that will run, in full precision: once as it
is recorded, once replayed. Outputs, losses, the gradient of every parameter, buffers and the positions of random
streams have to agree with those of the members' own models. Weights are moved a little before, for what starts at zero,
or equal to something else, hides mistakes. What has a state of its own makes a second step.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from nasflow.training.member.member import Member
from nasflow.training.unit.differences import gradient_distances, output_distance, unlike_gradients, unlike_values
from nasflow.training.unit.fused import FusedUnit, TriedStep
from nasflow.training.unit.member_step import Step, Subject

_TRIES = 3  # a value that rounding takes across a ReLU's corner is another one after the next move
_MOST_UNITS = 1e3  # in the last place, by which rounding is taken to move weights


def differences(
    unit: FusedUnit,
    subjects: Mapping[Member, Subject],
    batch: tuple[torch.Tensor, torch.Tensor],
    asked: Sequence[Member],
) -> dict[Member, str]:
    """The members to which the unit does something else than their own models do, and what is different.

    Args:
        unit: of several members; nothing of them changes.
        subjects: all of them.
        batch: inputs and targets.
        asked: those of them that are compared.
    """
    found: dict[Member, str] = {}
    rehearsal = _Rehearsal(unit, subjects, batch)
    with _in_full_precision(batch[0].device):
        for attempt in range(_TRIES):
            with _kept(unit.trained_tensors), rehearsal.unchanged():
                found = rehearsal.differences(asked, 2 * attempt)
            asked = list(found)
            if not asked:
                break
    return found


@dataclass(frozen=True)
class _MergedStep:
    """What a unit does in a step, as a whole and to each member that is compared."""

    whole: TriedStep
    steps: dict[Member, Step]


class _Rehearsal:
    """Steps of a unit and of its members' own models that are not made."""

    def __init__(self, unit: FusedUnit, subjects: Mapping[Member, Subject], batch: tuple[torch.Tensor, torch.Tensor]):
        self._unit, self._subjects, self._batch = unit, subjects, batch
        self._taped = not torch.is_autocast_enabled(batch[0].device.type)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Whatever runs inside, all members' models and streams are as before, but for weights that train."""
        with ExitStack() as stack:
            for subject in self._subjects.values():
                stack.enter_context(subject.unchanged())
            yield

    def differences(self, asked: Sequence[Member], move: int) -> dict[Member, str]:
        """The first difference of each member in a step, and in another one of those that have a state."""
        _move(self._unit.trained_tensors, move)
        try:
            recorded, replayed = self._merged(asked), self._merged(asked)
        except Exception:
            if all(isinstance(own, str) for own in map(self._own, asked)):
                return {}  # the batch is to blame: all of them will fail on it in training, and be told why
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
            _move(self._unit.trained_tensors, move + 1)
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
        """A step of its own model; if that fails, what it raises. Merged it has to fail, too."""
        try:
            return self._subjects[member].own_step(self._batch)
        except (Exception, SystemExit) as error:
            return f"by itself it raises {type(error).__name__}"

    def _unlike(self, owns: Mapping[Member, Step | str], merged: _MergedStep) -> dict[Member, str]:
        """What is different, by member; those whose own step failed are left out."""
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
        """How far a member's own gradients move when its weights do, so that its output moves by about `distance`.

        That is far where many values are at the corner of a ReLU, or where large ones cancel each other.
        """
        subject, units, found = self._subjects[member], 1.0, dict[str, float]()
        weights = [parameter.detach() for parameter in subject.trained.values()]
        with subject.unchanged():
            before = subject.own_step(self._batch)
        for _ in range(2):
            with subject.unchanged(), _kept(weights):
                _nudge(weights, units)
                after = subject.own_step(self._batch)
            found = gradient_distances(before, after)
            units = min(distance / max(output_distance(before, after), 1e-300), _MOST_UNITS)
            if units <= 1:
                break
        return found


@torch.no_grad()
def _move(tensors: Iterable[torch.Tensor], step: int) -> None:
    """Move weights a little, each number its own way, whatever the others are: of members that left they may be NaN."""
    for tensor, ways in _with_ways(tensors, step):
        tensor.add_(ways.mul_(tensor.abs().mul_(0.01).add_(1e-3)))


@torch.no_grad()
def _nudge(tensors: Iterable[torch.Tensor], units: float) -> None:
    """Move weights by about so many units in the last place."""
    for tensor, ways in _with_ways(tensors, 0):
        tensor.addcmul_(tensor, ways, value=units * torch.finfo(tensor.dtype).eps)


def _with_ways(tensors: Iterable[torch.Tensor], step: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Each tensor that has weights, and numbers from -1 to 1 of its shape, others in each step."""
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            places = torch.arange(1, tensor.numel() + 1, device=tensor.device, dtype=torch.float32)
            yield tensor, places.mul_(step + 1).sin_().view(tensor.shape).to(tensor.dtype)


@contextmanager
def _kept(tensors: Sequence[torch.Tensor]) -> Iterator[None]:
    """Whatever is written into the tensors inside, their values are as before."""
    values = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        for tensor, value in zip(tensors, values, strict=True):
            tensor.detach().copy_(value)


@contextmanager
def _in_full_precision(device: torch.device) -> Iterator[None]:
    """Whatever the training uses."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, enabled=False))
        backends: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul] if device.type == "cuda" else []
        for backend in backends:
            stack.callback(setattr, backend, "allow_tf32", backend.allow_tf32)
            backend.allow_tf32 = False
        yield
