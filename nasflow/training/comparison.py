"""Whether a unit does to its members what their own models do: looked at before its first step.

Two steps are rehearsed, the first of which records the tapes that the second replays: on the batch that comes, in the
mode, type and kernels that will run, in full precision. Outputs, losses, the gradient of every parameter, buffers and
the positions of random streams have to agree. Weights are moved a little before each step, for what starts at zero, or
equal to something else, hides mistakes.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nasflow.merge.graph import Graph
from nasflow.merge.knowledge import is_random
from nasflow.training import blame
from nasflow.training.fused import FusedUnit, TriedStep, unchanged
from nasflow.training.member import Member

_STEPS = 2
_TRIES = 3  # a value that rounding takes across a ReLU's corner is another one after the next move
_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}  # of a tensor's largest value; 1e-2 for shorter types
_NEXT_TO_ALL = 1e-2  # as much of that, of the member's largest gradient: rounding where the true gradient is zero


@dataclass(frozen=True)
class _Own:
    """What a member's own model does in a step."""

    output: torch.Tensor
    loss: torch.Tensor
    gradients: dict[nn.Parameter, torch.Tensor | None]


def differences(
    unit: FusedUnit, graphs: Mapping[Member, Graph], batch: tuple[torch.Tensor, torch.Tensor]
) -> dict[Member, str]:
    """The members to which the unit does something else than their own models do, and what is different.

    Args:
        unit: of several members; nothing of them changes.
        graphs: of its members.
        batch: inputs and targets.
    """
    asked = list(unit.members)
    found: dict[Member, str] = {}
    taped = not torch.is_autocast_enabled(batch[0].device.type)
    for attempt in range(_TRIES if asked else 0):
        with _exactly(batch[0].device), unchanged(unit.members), _weights_kept(unit, graphs):
            found = {}
            for step in range(_STEPS):
                _move(unit, attempt * _STEPS + step)
                left = [member for member in asked if member not in found]
                found.update(_compare(unit, left, graphs, batch, taped=taped, is_first=step == 0))
        asked = list(found)
        if not asked:
            break
    return found


def _compare(
    unit: FusedUnit,
    asked: Sequence[Member],
    graphs: Mapping[Member, Graph],
    batch: tuple[torch.Tensor, torch.Tensor],
    *,
    taped: bool,
    is_first: bool,
) -> dict[Member, str]:
    """The differences in one step, the first one of each member; buffers and streams go on as in the members' own."""
    try:
        with unchanged(unit.members), _weights_kept(unit, graphs, of_opaque_only=True):
            merged = unit.try_step(*batch, taped)
            after = {member: _state(member) for member in asked}
    except Exception:
        if not any(_succeeds(member, graphs[member], batch) for member in asked):
            return {}  # the batch is to blame: all of them will fail on it in training, and be told why
        raise
    found: dict[Member, str] = {}
    for member in asked:
        try:
            own = _own_step(member, graphs[member], batch)
        except (Exception, SystemExit) as error:  # it will fail in training, and is told then
            if is_first:
                found[member] = f"by itself it raises {type(error).__name__}"
            continue
        text = _unlike(own, merged, unit.row_of(member), member) or _unlike_states(_state(member), after[member])
        if text is not None:
            found[member] = text
    return found


def _own_step(member: Member, graph: Graph, batch: tuple[torch.Tensor, torch.Tensor]) -> _Own:
    """A step of a member's own model, without the step."""
    module: Any = member.module
    draws = graph.has_opaque or any(is_random(node) for node in graph.nodes)  # to enter a stream takes time
    stream = member.rng if draws else nullcontext()
    with blame.running(member.number), stream, _dense(module), torch.enable_grad():
        output, target = module.compare((batch[0].clone(), batch[1]))
        loss = module.loss(output, target)
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        grads = torch.autograd.grad(loss, trained, allow_unused=True) if loss.requires_grad else [None] * len(trained)
    return _Own(output.detach(), loss.detach(), dict(zip(trained, grads, strict=True)))


def _succeeds(member: Member, graph: Graph, batch: tuple[torch.Tensor, torch.Tensor]) -> bool:
    try:
        _own_step(member, graph, batch)
    except (Exception, SystemExit):
        return False
    return True


def _unlike(own: _Own, merged: TriedStep, row: int, member: Member) -> str | None:
    """What is different, for people; None if nothing is."""
    output = merged.outputs[row]
    if output.numel() != own.output.numel():
        return f"its output has the shape {tuple(output.shape)} instead of {tuple(own.output.shape)}"
    if not torch.isfinite(own.loss):
        return None  # numbers that are not finite can't be compared
    for name, mine, its in (("output", output.view_as(own.output), own.output), ("loss", merged.losses[row], own.loss)):
        if (size := _distance(mine, its, 1.0)) is not None:
            return f"its {name} differs by {size:.1e}"
    return _unlike_gradients(own, merged, member)


def _unlike_gradients(own: _Own, merged: TriedStep, member: Member) -> str | None:
    largest = {
        parameter: float(grad.abs().max())
        for parameter, grad in own.gradients.items()
        if grad is not None and grad.numel() > 0
    }
    most = max(largest.values(), default=0.0)
    for name, parameter in member.module.named_parameters():
        its, mine = own.gradients.get(parameter), merged.gradients.get(parameter)
        if its is None and mine is None:
            continue
        if its is None or mine is None:
            return f"{name} gets {'a' if its is None else 'no'} gradient"
        if (size := _distance(mine, its, _NEXT_TO_ALL * most)) is not None:
            return f"the gradient of {name} differs by {size:.1e}, its largest value is {largest[parameter]:.1e}"
    return None


def _unlike_states(own: dict[str, Any], merged: dict[str, Any]) -> str | None:
    for name, value in own.items():
        if name == "the random stream":
            if not _same_position(value, merged[name]):
                return f"{name} stands elsewhere"
        elif (size := _distance(merged[name], value, 1.0 if value.is_floating_point() else 0.0)) is not None:
            return f"{name} differs by {size:.1e}"
    return None


def _state(member: Member) -> dict[str, Any]:
    """What else a step changes: buffers, and the position of the random stream."""
    model: Any = member.module.model
    buffers = {name: buffer.detach().clone() for name, buffer in model.named_buffers()}
    return {**buffers, "the random stream": member.rng.state_dict()}


def _distance(mine: torch.Tensor, own: torch.Tensor, scale: float) -> float | None:
    """How far apart two tensors are; None if not farther than rounding takes them.

    Args:
        scale: the tolerance is of the largest value, and of `scale`, where that is larger.
    """
    if mine.numel() == 0 or own is mine:
        return None
    if not own.is_floating_point():
        return None if torch.equal(mine, own) else float((mine.double() - own.double()).abs().max())
    largest = float(own.abs().max())
    if not math.isfinite(largest):
        return None  # numbers that are not finite can't be compared
    size = float((mine - own).abs().max())
    bound = _TOLERANCE.get(own.dtype, 1e-2) * max(scale, largest)
    return None if size <= bound else size


def _same_position(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return all(_same_position(value, other[name]) for name, value in one.items())
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else bool(one == other)


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


@torch.no_grad()
def _move(unit: FusedUnit, step: int) -> None:
    """Move all weights that train a little, each number its own way."""
    for tensor in unit.trained_tensors:
        if tensor.is_floating_point() and tensor.numel():
            size = 0.01 * float(tensor.abs().mean()) + 1e-3
            places = torch.arange(1, tensor.numel() + 1, device=tensor.device, dtype=torch.float32)
            tensor.add_((places * (step + 1)).sin_().mul_(size).view(tensor.shape).to(tensor.dtype))


@contextmanager
def _weights_kept(unit: FusedUnit, graphs: Mapping[Member, Graph], of_opaque_only: bool = False) -> Iterator[None]:
    """Whatever runs inside, weights are as before: all that train, and those that an opaque module may write."""
    tensors = [] if of_opaque_only else list(unit.trained_tensors)
    for member in unit.members:
        if graphs[member].has_opaque:
            tensors += [parameter.detach() for parameter in member.module.parameters()]
    kept = [tensor.detach().clone() for tensor in tensors]
    try:
        yield
    finally:
        with torch.no_grad():
            for tensor, values in zip(tensors, kept, strict=True):
                tensor.copy_(values)


@contextmanager
def _exactly(device: torch.device) -> Iterator[None]:
    """In full precision, whatever the training uses."""
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, enabled=False))
        if device.type == "cuda":
            stack.enter_context(torch.backends.cudnn.flags(allow_tf32=False))
            matmul, was = torch.backends.cuda.matmul, torch.backends.cuda.matmul.allow_tf32
            matmul.allow_tf32 = False
            stack.callback(setattr, matmul, "allow_tf32", was)
        yield
