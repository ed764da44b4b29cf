"""A candidate's computation as a graph with shapes, built without computing anything."""

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass

from torch import nn

from nasflow.merge.trace.inlining import Expansion
from nasflow.merge.trace.node import Node, changes_in_place
from nasflow.merge.trace.op_properties import is_random, makes_tensor, runs_own_code
from nasflow.merge.trace.own_gradients import has_own_gradients
from nasflow.merge.trace.shape_inference import NotInferableError, Spec
from nasflow.merge.trace.signature import number_of


@dataclass(eq=False)
class Graph:
    """One member's nodes in the order in which its own forward runs them.

    Attributes:
        model: the candidate; nodes hold its own layers.
        input: the node of the only tensor that the model takes.
        output: the node that computes the model's output.
    """

    model: nn.Module
    nodes: list[Node]
    input: Node
    output: Node

    @property
    def has_opaque(self) -> bool:
        """Whether it calls modules with hooks, which may do anything, or with a forward that could not be traced."""
        return any(map(runs_own_code, self.nodes))

    @property
    def has_own_gradients(self) -> bool:
        """Whether the class of an opaque module mentions an autograd Function; nothing is known of its backward."""
        opaque = [node.module for node in self.nodes if node.opaque and node.module is not None]
        return any(map(has_own_gradients, {type(part) for module in opaque for part in module.modules()}))


class NotTraceableError(Exception):
    """The model as a whole can't be represented as a graph; it trains by itself."""


def trace(model: nn.Module, x: Spec) -> Graph:
    """Return the graph of `model(x)`, with shapes and signatures.

    Modules with a forward that can't be traced become opaque nodes; the rest is traced around them.

    Raises:
        NotTraceableError: even that is impossible; the message gives the reason.
    """
    source = Node("input", "x", (), {}, x, signature=number_of(("input", x)))
    nodes = [source]
    try:
        output = Expansion(nodes).call(model, "", (source,), {})
    except NotInferableError as error:
        raise NotTraceableError(str(error)) from error
    if not isinstance(output, Node) or not isinstance(output.spec, Spec):
        raise NotTraceableError("the model does not return a single tensor")
    needed = _needed(nodes, output)
    _refuse_overwriting(needed, output)
    _refuse_draws_by_memory(needed)
    return Graph(model, needed, source, output)


_known_writes: dict[Hashable, bool] = {}
_known_draws: dict[Hashable, bool] = {}


def _writes(node: Node) -> bool:
    """`changes_in_place`, cached by signature."""
    if node.signature not in _known_writes:
        _known_writes[node.signature] = changes_in_place(node)
    return _known_writes[node.signature]


def _draws(node: Node) -> bool:
    """`is_random`, cached by signature."""
    if node.signature not in _known_draws:
        _known_draws[node.signature] = is_random(node)
    return _known_draws[node.signature]


def _refuse_overwriting(nodes: list[Node], output: Node) -> None:
    """Refuse in-place operations on tensors that something else reads; others are as good as out-of-place ones."""
    writing = [node for node in nodes if _writes(node) and isinstance(node.inputs[0].spec, Spec)]
    readers = Counter(source for node in nodes for source in set(node.inputs)) if writing else Counter[Node]()
    readers[output] += 1  # the loss
    for node in nodes:
        if node.kwargs.get("out") is not None:
            raise NotTraceableError(f"{node.name} writes into a tensor that is passed as `out`")
    for node in writing:
        written: Node | None = node.inputs[0]
        while written is not None:
            if written.op in ("input", "attribute") or readers[written] > 1:
                raise NotTraceableError(f"{node.name} writes into a tensor that something else reads")
            written = None if makes_tensor(written) or not written.inputs else written.inputs[0]


def _refuse_draws_by_memory(nodes: list[Node]) -> None:
    """Refuse draws in a permuted memory order, because torch's attention has another order outside of training."""
    for node in nodes:
        if node.module is None and node.eval_args is None and _draws(node):
            for source in node.inputs:
                if isinstance(source.spec, Spec) and source.spec.order:
                    raise NotTraceableError(f"{node.name} draws random numbers in {source.name}'s memory order")


def _needed(nodes: list[Node], output: Node) -> list[Node]:
    """Return the nodes that the output depends on, and those that change something or may draw random numbers."""
    used = {output}
    for node in reversed(nodes):
        if node in used or node.op in ("input", "module") or _writes(node) or _draws(node):
            used.add(node)
            used.update(node.inputs)
    return [node for node in nodes if node in used]
