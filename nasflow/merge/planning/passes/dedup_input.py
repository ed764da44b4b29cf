"""Dedup input: members with the same data read one batch (Retiarii's common sub-expression at the root)."""

from nasflow.merge.planning.logical_plan import LogicalPlan, Operation


def dedup_input(plan: LogicalPlan) -> None:
    """Make the inputs of members with equal data one shared operation."""
    first: dict[str, Operation] = {}
    replaced: dict[Operation, Operation] = {}
    for operation in plan.operations:
        if operation.node.op != "input" or operation.member is None:
            continue
        kept = first.setdefault(plan.data[operation.member], operation)
        if kept is not operation:
            replaced[operation] = kept
    for kept in first.values():
        kept.member = None
    plan.share(replaced)
