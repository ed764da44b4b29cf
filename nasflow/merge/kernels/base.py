"""The contract of a kernel."""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

from nasflow.merge.trace.node import Node
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench


class Kernel(ABC):
    """Runs one node of each of `n` members; row `i` of its values is the member `bench.members[i]`.

    A row must not depend on the other rows, bit for bit, not even where they hold NaN. That rules out reductions over
    rows, and products with zeros in the place of other members' weights.

    Args:
        nodes: of equal `batch_key`, one a member.
        bench: lays the members' tensors side by side.

    Attributes:
        label: what it is called in a plan.
        is_batched: one call serves all rows.
        devices: the types of device it is made for; None for all.
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
        """Whether it can run such a node."""

    @classmethod
    def batch_key(cls, node: Node) -> Hashable:
        """Nodes of equal keys may run together."""
        return node.signature

    @classmethod
    @abstractmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        """The layouts it wants its inputs in, of those `given`, and the one of its output."""

    @abstractmethod
    def __call__(self, inputs: list[Any], training: bool) -> Any:
        """The rows of the output from those of the inputs."""
