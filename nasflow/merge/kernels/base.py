"""The base class of kernels."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

from nasflow.merge.trace.node import Node
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench


class Kernel(ABC):
    """Runs one node of each of `n` members; row `i` of its values belongs to the member `bench.members[i]`.

    A row must not depend on the other rows, bit for bit, not even if they hold NaN. That rules out reductions over
    rows, and products with zeros in place of other members' weights.

    A kernel that is also `nasflow.merge.tape.tape.Tapeable` records its own calls for a tape; others run there by
    autograd. Torch's own layers arrive whole, as nodes with a module. A layer that draws no random numbers has to be
    listed in `nasflow.merge.trace.op_properties`: any other counts as random. A short example is `embedding.py`.

    Args:
        nodes: one for each member, with equal `batch_key`.
        bench: stacks the members' tensors.

    Attributes:
        label: its name in a plan.
        is_batched: whether one call serves all rows.
        devices: the types of device it supports; None for all.
    """

    label: str
    is_batched = True
    devices: frozenset[str] | None = None

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        self.nodes = list(nodes)
        self.bench = bench
        self.rows = len(self.nodes)

    @classmethod
    @abstractmethod
    def fits(cls, node: Node) -> bool:
        """Whether the kernel can run such a node."""

    @classmethod
    def batch_key(cls, node: Node) -> Hashable:
        """Return a key; nodes with equal keys may run together."""
        return node.signature

    @classmethod
    @abstractmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        """Return the layouts that it needs for its inputs, which come as `given`, and the layout of its output."""

    @abstractmethod
    def __call__(self, inputs: list[Any], training: bool) -> Any:
        """Return the rows of the output for those of the inputs, which have the layouts that `layouts` asks for."""
