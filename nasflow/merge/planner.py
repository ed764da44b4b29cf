"""Decides which members form a unit, and how a unit runs."""

from collections.abc import Sequence

from nasflow.merge.graph import Graph
from nasflow.merge.passes.batch_operations import BatchOperations
from nasflow.merge.passes.dedup_input import dedup_input
from nasflow.merge.passes.dedup_prefix import dedup_prefix
from nasflow.merge.plan import LogicalPlan, Pass


class Planner:
    """Plans units of members that share their data.

    Args:
        passes: the user's own, run before operations are batched.
        device: the type of device.
    """

    def __init__(self, passes: Sequence[Pass] = (), device: str = "cpu"):
        self._passes = [dedup_input, dedup_prefix, *passes, BatchOperations(device=device)]

    def plan(self, graphs: Sequence[Graph]) -> LogicalPlan:
        """The plan of one unit."""
        plan = LogicalPlan.of(graphs)
        for rewrite in self._passes:
            rewrite(plan)
        return plan

    def partition(self, graphs: Sequence[Graph], limit: int) -> list[list[int]]:
        """Which of the graphs form units of at most `limit`, as positions; alike ones are neighbours."""
        order = sorted(range(len(graphs)), key=lambda index: _likeness(graphs[index]))
        count = -(-len(order) // limit) if order else 0
        size = -(-len(order) // count) if count else 0
        return [order[start : start + size] for start in range(0, len(order), size)] if count else []


def _likeness(graph: Graph) -> tuple[str, ...]:
    return tuple(f"{node.name}{getattr(node.spec, 'shape', '')}" for node in graph.nodes)
