"""Whether a unit does to its members what their own models do: looked at before its first step.

A step is rehearsed on the batch that comes, in the mode, type and kernels that will run, in full precision: once as it
is recorded, once replayed. Outputs, losses, the gradient of every parameter, buffers and the positions of random
streams have to agree with those of the members' own models. Weights are moved a little before, for what starts at zero,
or equal to something else, hides mistakes. What has a state of its own makes a second step.
"""

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nasflow.merge.graph import Graph
from nasflow.merge.knowledge import is_random
from nasflow.merge.structure import put_back, untouched
from nasflow.training import blame
from nasflow.training.fused import FusedUnit, TriedStep
from nasflow.training.member import Member

Batch = tuple[torch.Tensor, torch.Tensor]

_TRIES = 3  # a value that rounding takes across a ReLU's corner is another one after the next move
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}  # of a tensor's largest value; 1e-2 for shorter types
_OF_GRADIENTS = 5  # times as much: they are sums over many numbers that rounding may take to either side of a corner
_MOST_UNITS = 1e3  # in the last place, by which rounding is taken to move weights
_AS_FAR = 10  # times as far as rounding moves the member's own values
_AT_MOST = 0.1  # of the largest value: what moves it farther is no rounding, but numbers that a backward draws, say
_OUTPUT = "its output"
_OF_LARGEST = 1e-2  # as much of that, of the member's largest gradient: rounding where the true gradient is zero


@dataclass(frozen=True)
class _State:
    """What a step changes of a member beside its weights: buffers, and the position of its random stream."""

    buffers: dict[str, torch.Tensor]
    position: tuple[Any, ...] | None


@dataclass(frozen=True)
class _OwnStep:
    """What a member's own model does in a step; gradients by parameter, None where there is none."""

    output: torch.Tensor
    loss: torch.Tensor
    gradients: dict[str, tuple[nn.Parameter, torch.Tensor | None]]
    after: _State


@dataclass(frozen=True)
class _MergedStep:
    """What a unit does in a step, and in which of its rows each member is."""

    step: TriedStep
    rows: dict[Member, int]
    after: dict[Member, _State]


class Subject:
    """A member that is compared.

    Attributes:
        key: equal for members of which one stands for all: their graphs are the same.
    """

    def __init__(self, member: Member, graph: Graph):
        self.member = member
        module: Any = member.module
        self.module = module
        self.is_opaque = graph.has_opaque
        self._draws = graph.has_opaque or any(is_random(node) for node in graph.nodes)  # to enter a stream takes time
        self._buffers = dict(module.model.named_buffers())
        self._trained = {name: p for name, p in module.model.named_parameters() if p.requires_grad}
        places = {node: place for place, node in enumerate(graph.nodes)}
        self.key: Hashable = tuple(
            (node.signature, *(places[source] for source in node.inputs)) for node in graph.nodes
        )

    @property
    def trained(self) -> list[torch.Tensor]:
        """Its parameters that train."""
        return [parameter.detach() for parameter in self._trained.values()]

    @property
    def has_state(self) -> bool:
        """Whether a step changes more than weights."""
        return self.is_opaque or bool(self._buffers)

    def own_step(self, batch: Batch) -> _OwnStep:
        """What its own model does."""
        stream = self.member.rng if self._draws else nullcontext()
        with blame.running(self.member.number), stream, _dense(self.module), torch.enable_grad():
            output, target = self.module.compare((batch[0].clone(), batch[1]))
            loss = self.module.loss(output, target)
            parameters = list(self._trained.values())
            trains = loss.requires_grad and parameters
            grads = torch.autograd.grad(loss, parameters, allow_unused=True) if trains else [None] * len(parameters)
        gradients = dict(zip(self._trained, zip(parameters, grads, strict=True), strict=True))
        return _OwnStep(output.detach(), loss.detach(), gradients, self.state())

    def state(self) -> _State:
        """As it is now."""
        buffers = {name: buffer.detach().clone() for name, buffer in self._buffers.items()}
        return _State(buffers, self.member.rng.position() if self._draws else None)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Whatever runs inside, its model and random stream are as before, but for weights that train."""
        position = self.member.rng.position() if self._draws else None
        kept = [(buffer, buffer.clone()) for buffer in self._buffers.values()]
        if self.is_opaque:  # of it nothing is known
            kept += [(p.detach(), p.detach().clone()) for p in self.module.model.parameters()]
        with untouched(self.module.model) if self.is_opaque else nullcontext():
            try:
                yield
            finally:
                if position is not None:
                    self.member.rng.go_to(position)
                for tensor, values in kept:
                    put_back(tensor, values)


def differences(
    unit: FusedUnit, subjects: Mapping[Member, Subject], batch: Batch, asked: Sequence[Member]
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
    with _exactly(batch[0].device):
        for attempt in range(_TRIES):
            with _kept(unit.trained_tensors), rehearsal.unchanged():
                found = rehearsal.differences(asked, 2 * attempt)
            asked = list(found)
            if not asked:
                break
    return found


class _Rehearsal:
    """Steps of a unit and of its members' own models that are not made."""

    def __init__(self, unit: FusedUnit, subjects: Mapping[Member, Subject], batch: Batch):
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
        if not replayed.step.equals(recorded.step):
            found = self._unlike(owns, recorded) | found
        raising = {member: own for member, own in owns.items() if isinstance(own, str)}
        found |= {member: own for member, own in raising.items() if member not in replayed.step.failed}
        same = [member for member in asked if member not in found and member not in raising]
        again = [member for member in same if self._subjects[member].has_state]
        if again:
            _move(self._unit.trained_tensors, move + 1)
            merged = self._merged(again)
            found |= self._unlike({member: self._own(member) for member in again}, merged)
        return found

    def _unlike(self, owns: Mapping[Member, _OwnStep | str], merged: _MergedStep) -> dict[Member, str]:
        """What is different of those of whom something is; those whose own step failed are left out."""
        found = {}
        for member, own in owns.items():
            if isinstance(own, str):
                continue
            row = merged.rows[member]
            text = _unlike(own, merged.step, row, {})
            if text.startswith("the gradient"):
                far = float((merged.step.outputs[row].reshape(own.output.shape) - own.output).abs().max())
                text = _unlike(own, merged.step, row, self._rounding(member, far))
            text = text or _unlike_states(own.after, merged.after[member])
            if text:
                found[member] = text
        return found

    def _rounding(self, member: Member, far: float) -> dict[str, float]:
        """How far a member's own gradients move when its weights do, so that its output moves about as far as told.

        That is far where many values lie at the corner of a ReLU, or where large ones cancel each other.
        """
        subject, size, found = self._subjects[member], 1.0, dict[str, float]()
        with subject.unchanged():
            before = subject.own_step(self._batch)
        for _ in range(2):
            with subject.unchanged(), _kept(subject.trained):
                _nudge(subject.trained, size)
                sizes = _sizes(_pairs(before, subject.own_step(self._batch)))
            found = {name: distance for name, (_, distance) in sizes.items() if name.startswith("the")}
            size = min(far / max(sizes[_OUTPUT][1], 1e-300), _MOST_UNITS)
            if size <= 1:
                break
        return found

    def _merged(self, asked: Sequence[Member]) -> _MergedStep:
        with self.unchanged():
            step = self._unit.try_step(*self._batch, self._taped)
            after = {member: self._subjects[member].state() for member in asked}
        return _MergedStep(step, {member: self._unit.row_of(member) for member in asked}, after)

    def _own(self, member: Member) -> _OwnStep | str:
        """A step of its own model; if that fails, what it raises. Merged it has to fail, too."""
        try:
            return self._subjects[member].own_step(self._batch)
        except (Exception, SystemExit) as error:
            return f"by itself it raises {type(error).__name__}"


def _unlike(own: _OwnStep, merged: TriedStep, row: int, rounding: Mapping[str, float]) -> str:
    """What is different, empty if nothing is.

    Args:
        rounding: as far as that much moves the member's own values.
    """
    output = merged.outputs[row]
    if output.numel() != own.output.numel():
        return f"its output has the shape {tuple(output.shape)} instead of {tuple(own.output.shape)}"
    pairs = {_OUTPUT: (own.output, output.reshape(own.output.shape)), "its loss": (own.loss, merged.losses[row])}
    for name, (parameter, grad) in own.gradients.items():
        its = merged.gradients.get(parameter)
        if grad is not None and its is not None:
            pairs[f"the gradient of {name}"] = (grad, its)
        elif grad is not None or its is not None:
            return f"{name} gets {'a' if grad is None else 'no'} gradient"
    sizes = _sizes(pairs)
    most = max([size for name, (size, _) in sizes.items() if name.startswith("the")], default=0.0)
    for name, (size, distance) in sizes.items():
        scale = max(size, _OF_LARGEST * most) if name.startswith("the") else max(size, 1.0)
        slack = min(_AS_FAR * rounding.get(name, 0.0), _AT_MOST * scale)
        weight = _OF_GRADIENTS if name.startswith("the") else 1
        if _is_far(distance - slack, weight * scale, pairs[name][0]):
            return f"{name} differs by {distance:.1e}, its largest value is {size:.1e}"
    return ""


def _unlike_states(own: _State, merged: _State) -> str:
    if own.position != merged.position:
        return "its random stream stands elsewhere"
    pairs = {name: (buffer, merged.buffers[name]) for name, buffer in own.buffers.items()}
    for name, (buffer, other) in pairs.items():
        if not buffer.is_floating_point() and not torch.equal(buffer, other):
            return f"{name} is another"
    pairs = {name: pair for name, pair in pairs.items() if pair[0].is_floating_point()}
    for name, (size, distance) in _sizes(pairs).items():
        if _is_far(distance, max(1.0, size), pairs[name][0]):
            return f"{name} differs by {distance:.1e}, its largest value is {size:.1e}"
    return ""


def _sizes(pairs: Mapping[str, tuple[torch.Tensor, torch.Tensor]]) -> dict[str, tuple[float, float]]:
    """The largest value of the first of each, and how far the second is from it."""
    names = [name for name, (own, _) in pairs.items() if own.numel() > 0]
    if not names:
        return {}
    own, merged = [pairs[name][0] for name in names], [pairs[name][1] for name in names]
    norms = [*torch._foreach_norm(own, math.inf), *torch._foreach_norm(torch._foreach_sub(merged, own), math.inf)]
    sizes = torch.stack(norms if len({norm.dtype for norm in norms}) == 1 else [n.double() for n in norms]).tolist()
    return dict(zip(names, zip(sizes, sizes[len(names) :], strict=False), strict=True))


def _is_far(distance: float, scale: float, like: torch.Tensor) -> bool:
    """Whether that is farther than rounding takes it. Numbers that are not finite can't be compared."""
    return math.isfinite(scale) and not distance <= _TOLERANCE.get(like.dtype, 1e-2) * scale


def _pairs(one: _OwnStep, other: _OwnStep) -> dict[str, tuple[torch.Tensor, torch.Tensor]]:
    """The values of two steps of a model, by the names that differences have."""
    pairs = {_OUTPUT: (one.output, other.output), "its loss": (one.loss, other.loss)}
    for name, (_, grad) in one.gradients.items():
        its = other.gradients[name][1]
        if grad is not None and its is not None:
            pairs[f"the gradient of {name}"] = (grad, its)
    return pairs


@torch.no_grad()
def _nudge(tensors: Sequence[torch.Tensor], units: float) -> None:
    """Move weights by about so many units in the last place."""
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            places = torch.arange(1, tensor.numel() + 1, device=tensor.device, dtype=torch.float32).view(tensor.shape)
            tensor.addcmul_(tensor, places.sin_().to(tensor.dtype), value=units * torch.finfo(tensor.dtype).eps)


@torch.no_grad()
def _move(tensors: Sequence[torch.Tensor], step: int) -> None:
    """Move weights a little, each number its own way, whatever the others are: who has left a unit may be NaN in it."""
    for tensor in tensors:
        if tensor.is_floating_point() and tensor.numel():
            places = torch.arange(1, tensor.numel() + 1, device=tensor.device, dtype=torch.float32)
            ways = places.mul_(step + 1).sin_().view(tensor.shape).to(tensor.dtype)
            tensor.add_(ways.mul_(tensor.abs().mul_(0.01).add_(1e-3)))


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
def _dense(module: nn.Module) -> Iterator[None]:
    """Weights lie as they do where nothing is merged: on others, `view` may fail."""
    places = [(parameter, parameter.data) for parameter in module.parameters() if not parameter.is_contiguous()]
    for parameter, place in places:
        parameter.data = place.contiguous()
    try:
        yield
    finally:
        for parameter, place in places:
            parameter.data = place.copy_(parameter.data)


@contextmanager
def _exactly(device: torch.device) -> Iterator[None]:
    """In full precision, whatever the training uses."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, enabled=False))
        backends: list[Any] = [torch.backends.cudnn, torch.backends.cuda.matmul] if device.type == "cuda" else []
        for backend in backends:
            stack.callback(setattr, backend, "allow_tf32", backend.allow_tf32)
            backend.allow_tf32 = False
        yield
