"""Selects one of several results."""

from collections.abc import Sequence
from typing import Any

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import function_name
from nasflow.merge.values.layout import Layout


class Item(Kernel):
    """`results[index]`, for a layer that returns a tuple of tensors."""

    label = "item"

    @classmethod
    def fits(cls, node: Node) -> bool:
        index = node.args[1] if len(node.args) == 2 else None
        picks = function_name(node) == "getitem" and len(node.inputs) == 1 and isinstance(index, int)
        return picks and isinstance(node.inputs[0].spec, tuple)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return list(given), given[0]

    def __call__(self, inputs: list[Any], training: bool) -> Any:
        index = self.nodes[0].args[1]
        value = inputs[0]
        return [row[index] for row in value] if isinstance(value, list) else value[index]
