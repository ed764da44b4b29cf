"""Dedup prefix: what is the same for all members from the input on is computed once.

Retiarii's common sub-expression elimination, for everything that is deterministic and learns nothing: reshaping and
normalization, and a frozen trunk whose weights are equal. Autograd records nothing of it, for nothing in it trains.
"""

from collections.abc import Hashable

from nasflow.merge.planning.logical_plan import LogicalPlan, Operation
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import is_pure
from nasflow.tensors import address


def dedup_prefix(plan: LogicalPlan) -> None:
    """Make operations that give several members the same value shared ones."""
    first: dict[Hashable, Operation] = {}
    served: dict[Operation, set[int | None]] = {}
    replaced: dict[Operation, Operation] = {}
    for operation in plan.operations:
        if [source for source in operation.inputs if source.member is not None and source not in replaced]:
            continue  # soon, for this is nearly all of them
        inputs = tuple([replaced.get(source, source) for source in operation.inputs])
        if operation.is_shared or not is_pure(operation.node):
            continue
        key = (operation.node.signature, inputs, _tensors(operation.node))
        kept = first.setdefault(key, operation)
        served.setdefault(kept, set()).add(operation.member)
        if kept is operation:
            operation.member = None
        else:
            replaced[operation] = kept
    for operation, members in served.items():
        if len(members) == 1:  # though it may do it several times
            [operation.member] = members
    plan.share(replaced)


def _tensors(node: Node) -> Hashable:
    """Where the node's own tensors lie: equal frozen weights were given one storage when the members were made."""
    if node.op == "attribute":
        tensors = [node.args[0]]
    elif node.module is not None:
        tensors = [*node.module.parameters(), *node.module.buffers()]
    else:
        tensors = []
    return tuple((address(tensor), tensor.storage_offset(), tensor.stride()) for tensor in tensors)
