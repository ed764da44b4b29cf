"""A step of a member's own model, to compare with the unit's, and how its state is restored."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from nasflow.job import activity
from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.op_properties import is_changing, is_random
from nasflow.merge.trace.signature import put_back, untouched
from nasflow.training.member.member import Member


@dataclass(frozen=True)
class Step:
    """A member's results in a step, and what the step changes besides weights.

    Attributes:
        output: `[B, ...]`.
        gradients: by the parameters' names in the model; None for a parameter without a gradient.
        buffers: by name, after the step.
        position: of the random stream after the step; None for a model that draws no random numbers.
    """

    output: torch.Tensor
    loss: torch.Tensor
    gradients: dict[str, torch.Tensor | None]
    buffers: dict[str, torch.Tensor]
    position: tuple[Any, ...] | None


class Subject:
    """A member that is compared.

    Attributes:
        is_opaque: whether it runs code that its graph does not show.
        has_state: whether a step changes more than weights.
        trained: the parameters that train, by name.
    """

    def __init__(self, member: Member, graph: Graph):
        self._member = member
        module: Any = member.module
        self._module, self._model = module, graph.model
        self._graph = graph
        self.is_opaque = graph.has_opaque
        self._draws = any(map(is_random, graph.nodes))  # entering a stream takes time
        self._buffers = dict(self._model.named_buffers())
        self.has_state = self.is_opaque or any(map(is_changing, graph.nodes))
        self.trained = {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    @property
    def structure(self) -> Hashable:
        """A key that is equal for members with the same graph."""
        places = {node: place for place, node in enumerate(self._graph.nodes)}
        return tuple([(node.signature, *[places[source] for source in node.inputs]) for node in self._graph.nodes])

    def own_step(self, batch: tuple[torch.Tensor, torch.Tensor]) -> Step:
        """Compute a step of its own model, without the update."""
        stream = self._member.rng if self._draws else nullcontext()
        with activity.running(self._member.trial), stream, dense(self._module), torch.enable_grad():
            output, target = self._module.compare((batch[0].clone(), batch[1]))
            self._module.check_output(output, target)
            loss = self._module.loss(output, target)
            parameters = list(self.trained.values())
            trains = loss.requires_grad and parameters
            grads = torch.autograd.grad(loss, parameters, allow_unused=True) if trains else [None] * len(parameters)
        gradients = dict(zip(self.trained, grads, strict=True))
        return Step(output.detach(), loss.detach(), gradients, *self.state())

    def state(self) -> tuple[dict[str, torch.Tensor], tuple[Any, ...] | None]:
        """Return copies of the buffers, and the position."""
        buffers = {name: buffer.detach().clone() for name, buffer in self._buffers.items()}
        return buffers, self._member.rng.position() if self._draws else None

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Restore buffers and random stream afterwards; weights too where the member's own code may write them."""
        position = self._member.rng.position() if self._draws else None
        kept = [(buffer, buffer.clone()) for buffer in self._buffers.values()]
        if self.is_opaque:
            kept += [(p.detach(), p.detach().clone()) for p in self._model.parameters()]
        with untouched(self._model) if self.is_opaque else nullcontext():
            try:
                yield
            finally:
                if position is not None:
                    self._member.rng.go_to(position)
                for tensor, values in kept:
                    put_back(tensor, values)


@contextmanager
def dense(module: nn.Module) -> Iterator[None]:
    """Give weights the strides that they have unmerged: with others, `view` may fail."""
    places = [(parameter, parameter.data) for parameter in module.parameters() if not parameter.is_contiguous()]
    for parameter, place in places:
        parameter.data = place.contiguous()
    try:
        yield
    finally:
        for parameter, place in places:
            parameter.data = place.copy_(parameter.data)
