"""A searched cell: a small directed graph of operations, as in NASNet (Zoph et al. 2018) and NNI's `Cell`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Literal, cast

import torch
from torch import nn

from nasflow.errors import SpaceError
from nasflow.space.layers import LayerChoice, add
from nasflow.space.pick import Pick


class Cell(nn.Module):
    """Nodes in a row; each is the sum of its operations, each of which reads one earlier node or input of the cell.

    What the operation reads is chosen at `label/node<i>/input<j>` (first the cell's inputs, then the nodes, counted
    from 0), what it does at `label/node<i>/op<j>`. Two cells made with one label share all choices, and no weights.

    Args:
        op_candidates: by name, factories called with the place that the operation reads (below `num_predecessors`
            an input of the cell), so that e.g. a reduction cell strides only on its inputs. All must give equal shapes.
        num_nodes: inner nodes.
        num_ops_per_node: operations summed in each node.
        num_predecessors: inputs of the cell.
        merge_op: concatenate `all` nodes, or the `loose_end`s: the nodes that no other node reads.
        concat_dim: the dimension that grows, 1 for channels.

    Attributes:
        merged: the nodes that are concatenated. The output has `len(merged)` times the channels of a node.
    """

    def __init__(
        self,
        pick: Pick,
        label: str,
        op_candidates: Mapping[str, Callable[[int], nn.Module]],
        num_nodes: int,
        *,
        num_ops_per_node: int = 1,
        num_predecessors: int = 1,
        merge_op: Literal["all", "loose_end"] = "all",
        concat_dim: int = 1,
    ):
        super().__init__()
        if min(num_nodes, num_ops_per_node, num_predecessors) < 1:
            raise SpaceError(f"cell '{label}': nodes, operations per node and predecessors must be at least 1")
        if merge_op not in ("all", "loose_end"):
            raise SpaceError(f"cell '{label}': merge_op should be all or loose_end, not {merge_op!r}")
        self.num_predecessors = num_predecessors
        self.concat_dim = concat_dim
        self.sources: list[list[int]] = []
        self.nodes = nn.ModuleList()
        with pick.scope(label):
            for node in range(num_nodes):
                sources, ops = [], nn.ModuleList()
                for op in range(num_ops_per_node):
                    source = pick(f"node{node}/input{op}", range(num_predecessors + node))
                    factories = {name: partial(factory, source) for name, factory in op_candidates.items()}
                    ops.append(LayerChoice(pick, f"node{node}/op{op}", factories))
                    sources.append(source)
                self.sources.append(sources)
                self.nodes.append(ops)
        read = {source - num_predecessors for sources in self.sources for source in sources}
        self.merged = [node for node in range(num_nodes) if merge_op == "all" or node not in read]

    def forward(self, inputs: Sequence[torch.Tensor]) -> torch.Tensor:
        """`num_predecessors` tensors `[B, C, ...]` to one `[B, len(merged) * C, ...]`."""
        if len(inputs) != self.num_predecessors:
            raise ValueError(f"the cell has {self.num_predecessors} inputs, and was given {len(inputs)}")
        states = list(inputs)
        for ops, sources in zip(self.nodes, self.sources, strict=True):
            layers = cast(nn.ModuleList, ops)
            states.append(add([layer(states[source]) for layer, source in zip(layers, sources, strict=True)]))
        return torch.cat([states[self.num_predecessors + node] for node in self.merged], self.concat_dim)

    def extra_repr(self) -> str:
        """Return the text that `print` shows in parentheses."""
        return f"sources={self.sources}, merged={self.merged}"
