"""What the parts of a member's model read in a step, found by watching a step of the member's twin."""

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from nasflow.clean_text import error_message
from nasflow.job import activity
from nasflow.merge.trace.graph import Graph, NotTraceableError, trace
from nasflow.merge.trace.own_gradients import has_own_gradients
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.trace.stackable import why_not_stacked
from nasflow.training.member.batches import copied
from nasflow.training.member.member import Member
from nasflow.training.member.own_step import loss_in
from nasflow.training.unit.lockstep.parts import can_open
from nasflow.training.unit.lockstep.pausing import Call, PausingStep
from nasflow.training.unit.lockstep.proxy import proxied
from nasflow.training.unit.reasons import OWN_GRADIENTS

MODEL = "model"
"""The attribute of a ready-made evaluator's module that holds the candidate's model."""

_MOST_STEPS = 8  # for members that skip batches


@dataclass(frozen=True)
class Input:
    """What a part reads.

    Attributes:
        x: the first input, `[B, ...]`.
        shared: whether members that are alike in `Reading.key` read the same batch; otherwise each reads another.
    """

    x: torch.Tensor
    shared: bool = True

    def fits(self, call: Call, batch: "HandedBatch") -> bool:
        """Whether a unit of such members can answer a call."""
        x = call.x
        alike = x.shape[1:] == self.x.shape[1:] and x.dtype == self.x.dtype and x.device == self.x.device
        return alike and x.ndim == self.x.ndim and (not self.shared or batch.place_of(x) is not None)


@dataclass(frozen=True)
class Reading:
    """What a member's model reads.

    Attributes:
        parts: the input of each part of the model, by its path in the member's module, in the order of the calls.
        key: equal for members that can be fused, if their parts can.
        steps: how many steps it takes until one has a loss.
        graphs: of the parts.
    """

    parts: Mapping[str, Input]
    key: Hashable = ()
    steps: int = 1
    graphs: Mapping[str, Graph] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        """Where the parts run."""
        return next(iter(self.parts.values())).x.device


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
    """Return what the parts of a member's model read in a training step, or why it can't be fused with others."""
    try:
        with activity.running(member.trial):
            watch = _Watch(member)
            steps = watch.steps(batch)
            while steps and watch.opens_more():
                steps = watch.steps(batch)
            if not steps:
                return f"its training_step has no loss in {_MOST_STEPS} steps"
            watch.own_what_is_written()
            return watch.reading(steps)
    except (Exception, SystemExit) as error:  # of the member's own code, or because it can't be copied
        return f"its step can't be tried on a copy: {type(error).__name__}"


class _Watch:
    """Watches steps of a member's twin: which layers they call with one tensor, from the outside in."""

    def __init__(self, member: Member):
        self._member = member
        self._graphs: dict[str, Graph | None] = {}  # by path; None if it can't be fused as a whole
        self._reason = ""

    def steps(self, batch: Any) -> int:
        """Make steps of a new twin, without updates, up to one with a loss. Return how many, 0 if none has one."""
        self._twin = self._member.twin()
        self._paths = {id(layer): path for path, layer in self._twin.module.named_modules()}
        self._versions = {name: tensor._version for name, tensor in _frozen(self._twin.module)}
        for index in range(_MOST_STEPS):
            if self._step(batch, index) is not None:
                return index + 1
        return 0

    def opens_more(self) -> bool:
        """Take apart layers that hold, or are held by, others that were called earlier. Return whether there are some.

        Their own layers have to be found by other steps.
        """
        parts = self._disjoint()
        clashing = {path for path, _, _ in self._calls if path not in parts}
        self._graphs.update(dict.fromkeys(clashing))
        return bool(clashing)

    def _step(self, batch: Any, index: int) -> torch.Tensor | None:
        self._calls: list[tuple[str, Call, Hashable | None]] = []
        handed = HandedBatch(batch)
        twin = self._twin

        def fits(call: Call) -> bool:
            path = self._paths.get(id(call.module))
            if path is not None and self._graph(path, call) is not None:
                self._calls.append((path, call, handed.place_of(call.x)))
            return False

        step = PausingStep(lambda: twin.call_step("training_step", handed.values, index), fits, self._opens)
        names = [name for name, child in twin.module.named_children() if any(True for _ in child.parameters())]
        with twin.rng, torch.enable_grad(), proxied(twin.module, names):
            return loss_in(step.switch())

    def reading(self, steps: int) -> Reading | str:
        """Return what was read in the last step."""
        parts, calls = self._disjoint(), self._calls
        if OWN_GRADIENTS in self._reason or not calls:
            return self._reason or "its training_step does not call its model, or parts of it, with one tensor"
        if why := why_not_stacked(_Holder(parts)):
            return why
        inputs = {}
        for path in parts:
            places = [place for other, _, place in calls if other == path]
            x = next(call.x for other, call, _ in calls if other == path)
            inputs[path] = Input(x.detach(), None not in places)
        key = tuple([(path, c.x.shape, c.x.dtype, c.grad, c.training, place) for path, c, place in calls])
        graphs = {path: graph for path, graph in self._graphs.items() if graph is not None and path in parts}
        return Reading(inputs, (type(self._member.module), key), steps, graphs)

    def own_what_is_written(self) -> None:
        """Give a member memory of its own for frozen tensors that its step writes: they only begin as the others'."""
        written = {name for name, tensor in _frozen(self._twin.module) if tensor._version != self._versions.get(name)}
        for name, tensor in _frozen(self._member.module):
            if name in written:
                tensor.data = tensor.data.clone()

    def _graph(self, path: str, call: Call) -> Graph | None:
        """Return the graph of a layer of the member, if it can be fused, as far as its first call shows."""
        if path not in self._graphs:
            self._graphs[path] = self._trace(self._member.module.get_submodule(path), call.x)
        return self._graphs[path]

    def _trace(self, layer: nn.Module, x: torch.Tensor) -> Graph | None:
        if x.ndim == 0 or not any(True for _ in layer.parameters()):
            return None
        try:
            graph = trace(layer, Spec.batch(x))
        except NotTraceableError as error:
            self._reason = self._reason or f"it can't be traced: {error}"
            return None
        except (Exception, SystemExit) as error:  # of the member's own code
            self._reason = self._reason or f"it can't be traced: {error_message(error)}"
            return None
        if graph.has_own_gradients:
            self._reason = OWN_GRADIENTS
        return graph

    def _opens(self, layer: nn.Module) -> bool:
        if not can_open(layer) or self._graphs.get(self._paths.get(id(layer), "")) is not None:
            return False
        if has_own_gradients(type(layer)):
            self._reason = OWN_GRADIENTS
        return True

    def _disjoint(self) -> dict[str, nn.Module]:
        """Return the layers that were called, without those that have tensors of one that was called earlier."""
        found: dict[str, nn.Module] = {}
        taken: set[int] = set()
        for path in dict.fromkeys(path for path, _, _ in self._calls):
            layer = self._member.module.get_submodule(path)
            own = {id(tensor) for tensor in (*layer.parameters(), *layer.buffers())}
            if taken.isdisjoint(own):
                found[path] = layer
                taken |= own
        return found


class _Holder(nn.Module):
    """Layers under paths, which `add_module` refuses."""

    def __init__(self, layers: Mapping[str, nn.Module]):
        super().__init__()
        self._modules.update(layers)


def _frozen(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what may be in the same memory as other members' frozen tensors."""
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            yield name, parameter
    yield from module.named_buffers()


def _tensors(values: Any) -> Iterator[tuple[int, torch.Tensor]]:
    for place, leaf in enumerate(tree_leaves(values)):
        if isinstance(leaf, torch.Tensor) and not leaf.is_inference():
            yield place, leaf
