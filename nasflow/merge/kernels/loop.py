"""Runs operations member by member."""

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.trace.node import Node, changes_in_place, map_nodes
from nasflow.merge.trace.op_properties import averages_windows, is_random, minds_strides, pointwise
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench, LeftError


class Loop(Kernel):
    """Calls each member's own node as it is, within the member's random stream if it may draw from it.

    An exception in a member's own module is that member's failure: its row is NaN from then on; the others continue.
    """

    label = "loop"
    is_batched = False

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._random = any(is_random(node) for node in nodes)
        self._calls = [overwriting_nothing(node) for node in nodes]
        self._arranged = [minds_strides(node) for node in nodes]
        self._averages = averages_windows(nodes[0])

    @classmethod
    def fits(cls, node: Node) -> bool:
        return node.op != "input"

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [layout if layout is Layout.SCALAR else Layout.LIST for layout in given], Layout.LIST

    def __call__(self, inputs: list[Any], training: bool) -> list[Any]:
        rows = []
        for row, node in enumerate(self.nodes):
            values = [value[row] if isinstance(value, list) else value for value in inputs]
            if self._arranged[row] or (self._averages and values[0].is_cuda):
                values = [_arranged(value, source) for value, source in zip(values, node.inputs, strict=True)]
            rows.append(self._run(row, values, training))
        return rows

    def _run(self, row: int, values: list[Any], training: bool) -> Any:
        node, member = self.nodes[row], self.bench.members[row]

        def run() -> Any:
            with self.bench.streams[member] if self._random else nullcontext():
                return self._calls[row](values, training)

        if not node.opaque:
            return run()
        try:
            return self.bench.own_code(member, run)
        except LeftError:
            return _nothing(node, values)


def overwriting_nothing(node: Node) -> Callable[[list[Any], bool], Any]:
    """Return the node as a function of its inputs' values, which it leaves unchanged, and of whether it trains."""
    if node.opaque:  # it may write into any input
        return lambda values, training: call(node, list(map(_copied, values)), training)
    if not changes_in_place(node):
        return lambda values, training: call(node, values, training)
    function = pointwise(node)
    if function is not None:
        return lambda values, training: function(values[0])
    return lambda values, training: call(node, [_copied(values[0]), *values[1:]], training)


def _arranged(value: Any, source: Node) -> Any:
    return source.spec.arranged(value) if isinstance(source.spec, Spec) else value


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


def _nothing(node: Node, values: list[Any]) -> torch.Tensor:
    """Return NaN in the shape of the node's output."""
    if not isinstance(node.spec, Spec):
        raise TypeError(f"{node.name} does not return a single tensor")
    batch = values[0].shape[0]
    sizes = [batch if a != b else a for a, b in zip(node.spec.shape, node.spec.other, strict=True)]
    return torch.full(sizes, torch.nan, dtype=node.spec.dtype, device=values[0].device)
