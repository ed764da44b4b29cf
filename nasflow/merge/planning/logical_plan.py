"""The logical plan: what all members of a unit compute. Passes rewrite it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.node import Node


@dataclass(eq=False, slots=True)
class Operation:
    """A node in the plan of all members.

    Attributes:
        member: the member's position in the plan; None if one operation serves all members.
        inputs: the operations of the node's inputs, in order.
    """

    node: Node
    member: int | None
    inputs: tuple["Operation", ...]

    @property
    def is_shared(self) -> bool:
        """Whether it is computed once for all members."""
        return self.member is None


@dataclass(eq=False)
class Batch:
    """Operations that run as one kernel.

    Attributes:
        operations: at most one for each member, the rows of the kernel's values.
        kernel: the class in nasflow.merge.kernels that runs them.
        reason: why they run this way, for display.
    """

    operations: list[Operation]
    kernel: Any
    reason: str = ""


@dataclass(eq=False)
class LogicalPlan:
    """All members' operations, each member's in its own order.

    Attributes:
        graphs: one for each member.
        data: what data each member reads; equal values share one input.
        operations: in an order in which inputs come first.
        outputs: one for each member.
        batches: the groups that a batching pass made of the operations, in the order in which they run.
    """

    graphs: list[Graph]
    data: list[str]
    operations: list[Operation]
    outputs: list[Operation]
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def of(cls, graphs: Sequence[Graph], data: Sequence[str] | None = None) -> "LogicalPlan":
        """Return the plan before any pass: nothing shared, nothing batched."""
        operations: list[Operation] = []
        outputs = []
        for member, graph in enumerate(graphs):
            made: dict[Node, Operation] = {}
            for node in graph.nodes:
                operation = Operation(node, member, tuple([made[source] for source in node.inputs]))
                made[node] = operation
                operations.append(operation)
            outputs.append(made[graph.output])
        return cls(list(graphs), list(data or [""] * len(graphs)), operations, outputs)

    def share(self, replaced: dict[Operation, Operation]) -> None:
        """Let every reader of a replaced operation read its replacement."""
        if not replaced:
            return
        self.operations = [operation for operation in self.operations if operation not in replaced]
        for operation in self.operations:
            if not replaced.keys().isdisjoint(operation.inputs):
                operation.inputs = tuple([replaced.get(source, source) for source in operation.inputs])
        self.outputs = [replaced.get(output, output) for output in self.outputs]


Pass = Callable[[LogicalPlan], None]
"""Rewrites a plan in place."""
