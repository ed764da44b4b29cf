"""Dedup prefix: what is equal in several members from the input on is computed once.

Retiarii's common sub-expression elimination, for everything that is deterministic and not trained: reshaping and
normalization, and a frozen trunk with equal weights. Autograd records none of it, because none of it is trained.
"""

from collections.abc import Hashable

from nasflow.merge.planning.logical_plan import LogicalPlan, Operation
from nasflow.merge.trace.counter_dropout import CounterDropout
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import is_pure
from nasflow.tensors import address


def dedup_prefix(plan: LogicalPlan) -> None:
    """Make operations that compute the same value for several members shared ones."""
    first: dict[Hashable, Operation] = {}
    served: dict[Operation, set[int | None]] = {}
    replaced: dict[Operation, Operation] = {}
    for operation in plan.operations:
        if [source for source in operation.inputs if source.member is not None and source not in replaced]:
            continue  # early, because nearly all operations end here
        inputs = tuple([replaced.get(source, source) for source in operation.inputs])
        if operation.is_shared or operation.node.op == "input" or not is_pure(operation.node):
            continue
        key = (operation.node.signature, inputs, _tensors(operation.node))
        kept = first.setdefault(key, operation)
        served.setdefault(kept, set()).add(operation.member)
        if kept is operation:
            operation.member = None
        else:
            replaced[operation] = kept
    for operation, members in served.items():
        if len(members) == 1:  # one member only, though perhaps several times
            [operation.member] = members
    plan.share(replaced)


def _tensors(node: Node) -> Hashable:
    """Where the node's own tensors are stored: equal frozen weights share storage since the members were made."""
    if node.op == "attribute":
        tensors = [node.args[0]]
    elif node.module is not None and not isinstance(node.module, CounterDropout):  # a pure one reads nothing
        tensors = [*node.module.parameters(), *node.module.buffers()]
    else:
        tensors = []
    return tuple((address(tensor), tensor.storage_offset(), tensor.stride()) for tensor in tensors)
