"""The logical plan: what all members of a unit compute, which passes then rewrite."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.node import Node


@dataclass(eq=False, slots=True)
class Operation:
    """A node in its place among all members'.

    Attributes:
        member: its position in the plan; None where one operation serves all members.
        inputs: what the node's inputs became, in their order.
    """

    node: Node
    member: int | None
    inputs: tuple["Operation", ...]

    @property
    def is_shared(self) -> bool:
        """Computed once for all members."""
        return self.member is None


@dataclass(eq=False)
class Batch:
    """Operations that run as one kernel.

    Attributes:
        operations: one of each member at most, the rows of the kernel's values.
        kernel: the class in nasflow.merge.kernels that runs them.
        reason: why these run so, for people.
    """

    operations: list[Operation]
    kernel: Any
    reason: str = ""


@dataclass(eq=False)
class LogicalPlan:
    """All members' operations, each member's in its own order.

    Attributes:
        graphs: one a member.
        data: what feeds each member; equal values share one input.
        operations: in an order in which inputs come first.
        outputs: one a member.
        batches: what a batching pass made of the operations, in the order in which they run.
    """

    graphs: list[Graph]
    data: list[str]
    operations: list[Operation]
    outputs: list[Operation]
    batches: list[Batch] = field(default_factory=list)

    @classmethod
    def of(cls, graphs: Sequence[Graph], data: Sequence[str] | None = None) -> "LogicalPlan":
        """The plan before any pass: nothing shared, nothing batched."""
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
        """Let every reader of a replaced operation read what replaces it."""
        if not replaced:
            return
        self.operations = [operation for operation in self.operations if operation not in replaced]
        for operation in self.operations:
            if not replaced.keys().isdisjoint(operation.inputs):
                operation.inputs = tuple([replaced.get(source, source) for source in operation.inputs])
        self.outputs = [replaced.get(output, output) for output in self.outputs]


Pass = Callable[[LogicalPlan], None]
