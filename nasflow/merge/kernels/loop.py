"""Runs operations member by member."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch
from torch import nn

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.trace.node import Node, changes_in_place, map_nodes
from nasflow.merge.trace.op_properties import averages_windows, is_random, minds_strides, pointwise, runs_own_code
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench, LeftError


class Loop(Kernel):
    """Calls each member's own node as it is, within the member's random stream if it may draw from it.

    An exception in a member's own module is that member's failure: its row is NaN from then on; the others continue.

    Attributes:
        is_own: whether it runs code of the members' own.
    """

    label = "loop"
    is_batched = False

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._random = any(is_random(node) for node in nodes)
        self._own = [runs_own_code(node) for node in nodes]
        self.is_own = any(self._own)
        own = zip(nodes, self._own, strict=True)
        self._calls = [partial(call, node) if is_own else overwriting_nothing(node) for node, is_own in own]
        self._arranged = [minds_strides(node) for node in nodes]
        self._averages = averages_windows(nodes[0])
        self._given: set[tuple[int, int]] = set()  # inputs that need a gradient, as row and place
        self._reached: set[tuple[int, int]] = set()  # those that have got one since
        self._ever_reached: set[tuple[int, int]] = set()

    @classmethod
    def fits(cls, node: Node) -> bool:
        return node.op != "input"

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [layout if layout is Layout.SCALAR else Layout.LIST for layout in given], Layout.LIST

    def __call__(self, inputs: list[Any], training: bool) -> list[Any]:
        rows: list[Any] = []
        left: dict[int, list[Any]] = {}
        for row, node in enumerate(self.nodes):
            values = [value[row] if isinstance(value, list) else value for value in inputs]
            if self._arranged[row] or (self._averages and values[0].is_cuda):
                values = [_arranged(value, source) for value, source in zip(values, node.inputs, strict=True)]
            try:
                rows.append(self._run(row, values, training))
            except LeftError:
                rows.append(None)
                left[row] = values
        if left:
            alike = next((value for row, value in enumerate(rows) if row not in left), None)
            for row, values in left.items():
                rows[row] = _nothing(self.nodes[row], values) if len(left) == len(rows) else _nothing_like(alike)
        return rows

    def take_unreached(self) -> set[int]:
        """Return the members with an input that has got no gradient since the last call, unlike before, or as others'.

        Alone, what such an input depends on has no gradient; here it gets zeros.
        """
        given, reached = self._given, self._reached
        self._given, self._reached = set(), set()  # graphs that are left refer to the old ones
        self._ever_reached |= reached
        missing = given - reached
        if not missing:
            return set()
        places = {place for _, place in reached}
        missing = {(row, place) for row, place in missing if place in places or (row, place) in self._ever_reached}
        return {self.bench.members[row] for row, _ in missing}

    def _run(self, row: int, values: list[Any], training: bool) -> Any:
        member = self.bench.members[row]
        given = [self._taken(row, *each) for each in enumerate(values)] if self._own[row] else values

        def run() -> Any:
            with self.bench.streams[member] if self._random else nullcontext():
                return self._calls[row](given, training)

        return self.bench.own_code(member, run) if self._own[row] else run()

    def _taken(self, row: int, place: int, value: Any) -> Any:
        """Return a copy of an input, which the member's own code may write into, and note if it gets a gradient."""
        value = _copied(value)
        if isinstance(value, torch.Tensor) and value.requires_grad:
            self._given.add((row, place))
            value.register_hook(partial(_note, self._reached, (row, place)))
        return value


def overwriting_nothing(node: Node) -> Callable[[list[Any], bool], Any]:
    """Return the node as a function of its inputs' values, which it leaves unchanged, and of whether it trains."""
    if runs_own_code(node):  # it may write into any input
        return lambda values, training: call(node, list(map(_copied, values)), training)
    if not changes_in_place(node):
        return lambda values, training: call(node, values, training)
    function = pointwise(node)
    if function is not None:
        return lambda values, training: function(values[0])
    return lambda values, training: call(node, [_copied(values[0]), *values[1:]], training)


def _arranged(value: Any, source: Node) -> Any:
    return source.spec.arranged(value) if isinstance(source.spec, Spec) else value


def _note(reached: set[tuple[int, int]], key: tuple[int, int], grad: torch.Tensor | None) -> None:
    if grad is not None:
        reached.add(key)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def call(node: Node, values: list[Any], training: bool) -> Any:
    """Run the node as it is on the values of its inputs."""
    places = dict(zip(node.inputs, values, strict=True))
    args, kwargs = (node.args, node.kwargs) if training or node.eval_args is None else node.eval_args
    args, kwargs = (map_nodes(tree, places.__getitem__) for tree in (args, kwargs))
    if isinstance(node.module, nn.Module):
        return node.module(*args, **kwargs)
    if node.op == "attribute":
        return args[0]
    if node.op == "method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)


def _nothing(node: Node, values: list[Any]) -> Any:
    """Return NaN in the shape of the node's output, by the sizes that its inputs have now; zeros for whole numbers."""
    sizes: dict[tuple[int, int], int] = {}  # by those at both traced batch sizes
    tensors = [pair for pair in zip(node.inputs, values, strict=True) if isinstance(pair[1], torch.Tensor)]
    for source, value in tensors:
        if isinstance(source.spec, Spec):
            for *traced, size in zip(source.spec.shape, source.spec.other, value.shape, strict=True):
                if size != traced[0] or tuple(traced) not in sizes:  # a length that differs now counts
                    sizes[traced[0], traced[1]] = size
    more = next((size - a for (a, b), size in sizes.items() if b - a == 1), 0)  # samples than were traced

    def nothing(spec: Any) -> Any:
        if isinstance(spec, tuple | list):
            return tuple(map(nothing, spec))
        if not isinstance(spec, Spec):
            raise TypeError(f"{node.name} does not return tensors only")
        shape = [sizes.get((a, b), a + (b - a) * more) for a, b in zip(spec.shape, spec.other, strict=True)]
        fill = torch.nan if spec.dtype.is_floating_point else 0
        return torch.full(shape, fill, dtype=spec.dtype, device=tensors[0][1].device if tensors else None)

    return nothing(node.spec)


def _nothing_like(value: Any) -> Any:
    """Return NaN in the shape of another row's output; zeros in place of whole numbers."""
    if isinstance(value, tuple | list):
        return tuple(map(_nothing_like, value))
    if not isinstance(value, torch.Tensor):
        return value
    value = value.detach()
    return torch.full_like(value, torch.nan) if value.is_floating_point() else torch.zeros_like(value)
