"""Decides which members form a unit, and how a unit runs, by the measured costs of its kernels."""

import itertools
from collections.abc import Hashable, Iterable, Sequence

import torch

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.planning.grouping import Grouping, Stage, Work
from nasflow.merge.planning.logical_plan import LogicalPlan, Pass
from nasflow.merge.planning.passes.batch_operations import BatchOperations, Chooser, FirstChoice
from nasflow.merge.planning.passes.dedup_input import dedup_input
from nasflow.merge.planning.passes.dedup_prefix import dedup_prefix
from nasflow.merge.trace.graph import Graph
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.values.layout import Layout
from nasflow.system.gc_control import uncollected

Choices = dict[Node, type[Kernel]]


class Planner:
    """Plans units of members that share their data.

    Args:
        passes: the user's own, run before operations are batched.
        device: where the job trains.
        costs: what kernels cost; without it, everything that can be fused is.
    """

    def __init__(
        self,
        passes: Sequence[Pass] = (),
        device: torch.device | None = None,
        costs: CostModel | None = None,
    ):
        self._passes: list[Pass] = [dedup_prefix, *passes]
        self.device = device or torch.device("cpu")
        self.costs = costs

    def plan(self, graphs: Sequence[Graph], choices: Choices | None = None, shared: bool = True) -> LogicalPlan:
        """Return the plan of one unit.

        Args:
            graphs: of its members.
            choices: as `BatchOperations` takes them.
            shared: whether all members read the same batch.
        """
        choose: Chooser = FirstChoice() if self.costs is None else _Cheapest(self.costs)
        dedup: list[Pass] = [dedup_input] if shared else []
        passes: list[Pass] = [*dedup, *self._passes, BatchOperations(choose, self.device.type, choices)]
        with uncollected():
            plan = LogicalPlan.of(graphs)
            for rewrite in passes:
                rewrite(plan)
        return plan

    def partition(self, parts: Sequence[Sequence[Graph]], limit: int, shared: Sequence[bool]) -> list[list[int]]:
        """Return units of at most `limit` members, as positions; similar members are neighbours.

        Members that would be no faster in a unit are in units of one. The units depend on the members, their order and
        the costs of kernels only.

        Args:
            parts: the members' graphs of each part of their models.
            shared: whether all members read the same batch in a part.
        """
        order = _by_likeness(list(zip(*parts, strict=True)))
        if self.costs is None:
            return _chunks(order, limit)
        ordered = [[graphs[index] for index in order] for graphs in parts]

        def stages(group: range) -> list[Stage]:
            found = []
            for graphs, is_shared in zip(ordered, shared, strict=True):
                plan = self.plan(graphs[group.start : group.stop], shared=is_shared)
                found += self._stages(plan, group.start)
            return found

        works = [self._work(graphs) for graphs in zip(*ordered, strict=True)]
        units = Grouping(works, stages, self.costs.step(), limit).units()
        self.costs.save()
        return [[order[place] for place in unit] for unit in units]

    def alone(self, graph: Graph) -> float:
        """Return the seconds of a member's step by itself, without its optimizer."""
        return sum(self._work([graph]).values())

    def cost(self, plan: LogicalPlan) -> float:
        """Return the seconds of a unit's step, without its optimizer."""
        return sum(self.batch_costs(plan))

    def batch_costs(self, plan: LogicalPlan) -> list[float]:
        """Return the seconds of each batch: its kernel, and the gathers of its inputs."""
        assert self.costs is not None  # noqa: S101 - callers have costs
        found = []
        home = {operation: index for index, batch in enumerate(plan.batches) for operation in batch.operations}
        for batch in plan.batches:
            first = batch.operations[0]
            found.append(0.0)
            if batch.kernel is None:
                continue
            shared = any(source.is_shared for source in first.inputs)
            found[-1] += self.costs.kernel(batch.kernel, first.node, len(batch.operations), shared)
            if batch.kernel is Loop or first.is_shared:
                continue
            for position, source in enumerate(first.inputs):
                homes = {home[operation.inputs[position]] for operation in batch.operations}
                whole = len(homes) == 1 and len(plan.batches[min(homes)].operations) == len(batch.operations)
                if not whole and not source.is_shared:
                    found[-1] += self.costs.gather(_usual(source.node), _numbers(source.node) * len(batch.operations))
        return found

    def _work(self, graphs: Iterable[Graph]) -> Work:
        """Return the work of a member with these graphs."""
        assert self.costs is not None  # noqa: S101 - callers have costs
        work: Work = {}
        for graph in graphs:
            for node in graph.nodes:
                if node is not graph.input:
                    seconds = self.costs.kernel(Loop, node, 1, graph.input in node.inputs)
                    work[node.signature] = work.get(node.signature, 0.0) + seconds
        return work

    def _stages(self, plan: LogicalPlan, start: int) -> list[Stage]:
        """Return the batches of a unit whose first member has the position `start`."""
        everyone = [0, len(plan.graphs) - 1]
        found = []
        for batch, seconds in zip(plan.batches, self.batch_costs(plan), strict=True):
            members = [operation.member for operation in batch.operations if operation.member is not None] or everyone
            found.append(Stage(seconds, start + min(members), start + max(members)))
        return found


class _Cheapest:
    """Chooses the kernel with the lowest measured cost."""

    is_measured = True

    def __init__(self, costs: CostModel):
        self._costs = costs
        self._known: dict[Hashable, type[Kernel]] = {}

    def __call__(self, node: Node, rows: int, kernels: Sequence[type[Kernel]], shared: bool) -> type[Kernel]:
        if len(kernels) == 1:
            return kernels[0]
        key = (node.signature, node.opaque, shared, rows)
        if key not in self._known:
            costs = {kernel: self._costs.kernel(kernel, node, rows, shared) for kernel in kernels}
            costs[Loop] += self._costs.gather(_usual(node), _numbers(node) * rows)
            self._known[key] = min(costs, key=lambda kernel: costs[kernel])
        return self._known[key]

    def apart(self, node: Node, kernel: type[Kernel], rows: Sequence[int]) -> bool:
        """Whether separate groups cost less than one group that is gathered first."""
        layout, numbers = _usual(node.inputs[0]), _numbers(node.inputs[0]) * sum(rows)
        together = self._costs.kernel(kernel, node, sum(rows), shared=False) + self._costs.gather(layout, numbers)
        return sum(self._costs.kernel(kernel, node, count, shared=False) for count in rows) < together


def _chunks(order: list[int], size: int) -> list[list[int]]:
    """Return as few runs of at most `size` as possible, of about equal length."""
    if not order:
        return []
    count = -(-len(order) // size)
    bounds = [len(order) * part // count for part in range(count + 1)]
    return [order[start:stop] for start, stop in itertools.pairwise(bounds)]


def _numbers(node: Node) -> int:
    return node.spec.numbers if isinstance(node.spec, Spec) else 0


def _usual(node: Node) -> Layout:
    return Layout.CHANNELS if isinstance(node.spec, Spec) and len(node.spec.shape) == 4 else Layout.STACK


def _by_likeness(members: Sequence[tuple[Graph, ...]]) -> list[int]:
    """Return positions of members, sorted by names and shapes of their operations, then by what else these are.

    That does not depend on the process: signatures count by where they first occur.
    """
    seen: dict[Hashable, int] = {}

    def key(graphs: tuple[Graph, ...]) -> tuple[list[str], list[int]]:
        nodes = [node for graph in graphs for node in graph.nodes]
        names = [f"{node.name}{getattr(node.spec, 'shape', '')}" for node in nodes]
        return names, [seen.setdefault(node.signature, len(seen)) for node in nodes]

    keys = [key(graphs) for graphs in members]
    return sorted(range(len(members)), key=keys.__getitem__)
