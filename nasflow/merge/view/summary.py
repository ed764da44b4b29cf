"""A unit's plan in plain values: how each step runs, for which members, what it costs and which values it reads."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nasflow.merge.kernels.loop import Loop
from nasflow.merge.kernels.registry import kernels_for
from nasflow.merge.planning.logical_plan import Batch, LogicalPlan, Operation
from nasflow.merge.planning.planner import Planner
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.shape_inference import Scalar, Spec


@dataclass(frozen=True)
class Step:
    """One step of a unit.

    Attributes:
        operation: its display name, e.g. `Conv2d 3x3`; all names where different activations run together.
        shapes: of a member's inputs and output, without the batch.
        members: those it serves, as positions in the unit.
        kind: the `input`; computed once for all it serves (`shared`); by one kernel (`batched`); one by one (`loop`).
        kernel: what runs it.
        reason: why it runs this way; empty if it is batched as far as possible.
        reads: earlier steps with values that it reads, and in which lane: pairs of a step and a member.
        gathers: how many of its inputs are gathered from several values.
    """

    operation: str
    shapes: str
    members: tuple[int, ...]
    kind: Literal["input", "shared", "batched", "loop"]
    kernel: str
    reason: str
    reads: tuple[tuple[int, int], ...]
    gathers: int


@dataclass(frozen=True)
class Outline:
    """A unit's steps, in the order in which they run.

    Attributes:
        outputs: for each member, the step that computes its output.
        output_gathers: 1 if the outputs come from several steps.
        operations: how many all members have, run one by one.
        looped: how many of those do run one by one.
    """

    steps: tuple[Step, ...]
    outputs: tuple[int, ...]
    output_gathers: int
    operations: int
    looped: int

    @property
    def fused(self) -> int:
        """The number of operations that run together with others, or once for several members."""
        return self.operations - self.looped

    @property
    def gathers(self) -> int:
        """How many values are gathered from several."""
        return sum(step.gathers for step in self.steps) + self.output_gathers

    @property
    def kernels(self) -> dict[str, int]:
        """How many steps each kernel runs, the most frequent first."""
        return dict(Counter(step.kernel for step in self.steps if step.kind != "input").most_common())


@dataclass(frozen=True)
class Price:
    """Seconds of a step's forward and backward; None where it does not apply.

    Attributes:
        seconds: as it runs, with its gathers.
        batched: of the chosen kernel; for a loop, of the best other kernel. Infinite if that can't run.
        looped: member by member.
    """

    seconds: float
    batched: float | None
    looped: float | None


def outline(model: MergedModel) -> Outline:
    """Return the outline of a merged model."""
    plan = model.plan
    home = {operation: index for index, batch in enumerate(plan.batches) for operation in batch.operations}
    served = _served(plan)
    steps = []
    for index, batch in enumerate(plan.batches):
        members = tuple(sorted({member for operation in batch.operations for member in served[operation]}))
        reads = {
            (home[source], member)
            for operation in batch.operations
            for source in operation.inputs
            for member in (served[operation] if operation.member is None else (operation.member,))
        }
        kind, kernel = _kind(batch)
        steps.append(
            Step(
                _operations([operation.node for operation in batch.operations]),
                _shapes(batch.operations[0].node),
                members,
                kind,
                kernel,
                batch.reason,
                tuple(sorted(reads)),
                model.gathers_at[index],
            )
        )
    operations = sum(len(graph.nodes) - 1 for graph in plan.graphs)
    looped = sum(len(step.members) for step in steps if step.kind == "loop")
    return Outline(
        tuple(steps), tuple(home[output] for output in plan.outputs), model.gathers_at[-1], operations, looped
    )


def prices(plan: LogicalPlan, planner: Planner) -> list[Price]:
    """Return the cost of each of a plan's batches, measured if it is unknown. The planner must have costs."""
    costs = planner.costs
    assert costs is not None  # noqa: S101 - callers have costs
    found = []
    for batch, seconds in zip(plan.batches, planner.batch_costs(plan), strict=True):
        first, rows = batch.operations[0], len(batch.operations)
        if batch.kernel is None or first.is_shared or rows == 1:
            found.append(Price(seconds, None, None))
            continue
        shared = any(source.is_shared for source in first.inputs)
        kernels = [batch.kernel] if batch.kernel is not Loop else kernels_for(first.node, shared, planner.device.type)
        batched = [costs.kernel(kernel, first.node, rows, shared) for kernel in kernels if kernel is not Loop]
        found.append(Price(seconds, min(batched, default=None), costs.kernel(Loop, first.node, rows, shared)))
    return found


def _served(plan: LogicalPlan) -> dict[Operation, set[int]]:
    """Return the members that each operation serves; for a shared one, those that read it, directly or not."""
    served = {operation: set() if operation.member is None else {operation.member} for operation in plan.operations}
    for member, output in enumerate(plan.outputs):
        served[output].add(member)
    for operation in reversed(plan.operations):
        for source in operation.inputs:
            if source.member is None:
                served[source] |= served[operation]
    return served


def _kind(batch: Batch) -> tuple[Literal["input", "shared", "batched", "loop"], str]:
    if batch.kernel is None:
        return "input", "read"
    if batch.operations[0].is_shared:
        return "shared", "once"
    together = batch.kernel.is_batched and len(batch.operations) > 1
    return "batched" if together else "loop", batch.kernel.label


def _operations(nodes: Sequence[Node]) -> str:
    if nodes[0].op == "input":
        return "input"
    return ", ".join(dict.fromkeys(_operation(node) for node in nodes))


def _operation(node: Node) -> str:
    """Return the node's name, with the window and groups of convolutions and pools."""
    module: Any = node.module
    window = getattr(module, "kernel_size", None)
    if node.opaque or not isinstance(window, int | tuple):
        return f"{node.name} (opaque)" if node.opaque else node.name
    groups = getattr(module, "groups", 1)
    size = "x".join(map(str, window)) if isinstance(window, tuple) else str(window)
    depthwise = " depthwise" if groups > 1 and groups == module.in_channels else ""
    return f"{node.name} {size}{depthwise or (f' of {groups} groups' if groups > 1 else '')}"


def _shapes(node: Node) -> str:
    inputs = [_shape(source.spec) for source in node.inputs if isinstance(source.spec, Spec)]
    output = _shape(node.spec)
    return f"{', '.join(dict.fromkeys(inputs))} → {output}" if inputs else output


def _shape(spec: Any) -> str:
    """Return the shape as text, without the dimensions that depend on the batch size."""
    if isinstance(spec, Spec):
        own = [str(size) for size, other in zip(spec.shape, spec.other, strict=True) if size == other]
        return "x".join(own) or "scalar"
    if isinstance(spec, tuple):
        return f"({', '.join(_shape(item) for item in spec)})"
    return "number" if isinstance(spec, Scalar) else "nothing"
