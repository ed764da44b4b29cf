"""Operations of a member that share tensors: a layer that is called twice, tied weights.

A tensor can be a row of one stack only. So operations that share one are either all batched over the same members in
the same order, or all run row by row on the members' own tensors.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Sequence

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.planning.logical_plan import LogicalPlan, Operation
from nasflow.merge.trace.node import tensors_of


class Ties:
    """Finds which operations share tensors, and how."""

    def __init__(self, plan: LogicalPlan):
        self._keys: dict[Operation, Hashable] = {}
        self._alike: dict[Hashable, list[list[Operation]]] = defaultdict(list)  # groups of the same structure
        for group in _groups(plan):
            structure = _structure(group)
            self._alike[structure].append(group)
            for place, operation in enumerate(group):
                self._keys[operation] = (place, structure)

    def __contains__(self, operation: Operation) -> bool:
        return operation in self._keys

    def key(self, operation: Operation) -> Hashable:
        """Return a key, equal for operations at the same position in groups that share tensors in the same way."""
        return self._keys.get(operation)

    def stackable(
        self, batches: Sequence[list[Operation]], kernel_of: Callable[[list[Operation]], type[Kernel]]
    ) -> Collection[Operation]:
        """Return operations that can be batched: all of their groups run in batched kernels, over the same members."""
        batch_of = {operation: batch for batch in batches for operation in batch if operation in self}
        found: list[Operation] = []
        for groups in self._alike.values():
            whole = all(operation.node.op == "module" and not operation.is_shared for operation in groups[0])
            if whole and all(_is_aligned(group, batch_of, kernel_of) for group in groups):
                found += [operation for group in groups for operation in group]
        return set(found)


def _groups(plan: LogicalPlan) -> list[list[Operation]]:
    """Return groups of operations that share tensors, directly or through others, in the plan's order."""
    users: dict[int, list[Operation]] = defaultdict(list)
    for operation in plan.operations:
        if operation.node.module is not None or operation.node.op == "attribute":
            for tensor in tensors_of(operation.node):
                users[id(tensor)].append(operation)
    joined: dict[Operation, list[Operation]] = {}
    for operations in users.values():
        if len(operations) < 2:
            continue
        group: list[Operation] = []
        for operation in operations:
            other = joined.get(operation, [operation])
            if other is not group:
                group += [one for one in other if one not in group]
                joined.update(dict.fromkeys(other, group))
    order = {operation: place for place, operation in enumerate(plan.operations)} if joined else {}
    whole = {id(group): group for group in joined.values()}
    return [sorted(group, key=order.__getitem__) for group in whole.values()]


def _structure(group: Sequence[Operation]) -> Hashable:
    """Return a key of the group's operations and of the tensors that they share."""
    numbers: dict[int, int] = {}
    members = {operation.member: place for place, operation in enumerate(group)}
    return tuple(
        (
            operation.node.signature,
            None if operation.member is None else members[operation.member],
            tuple(numbers.setdefault(id(tensor), len(numbers)) for tensor in tensors_of(operation.node)),
        )
        for operation in group
    )


def _is_aligned(
    group: Sequence[Operation],
    batch_of: dict[Operation, list[Operation]],
    kernel_of: Callable[[list[Operation]], type[Kernel]],
) -> bool:
    batches = [batch_of[operation] for operation in group]
    members = [operation.member for operation in batches[0]]
    one_member = {operation.member for operation in group} == {group[0].member}
    return one_member and all(
        [operation.member for operation in batch] == members and kernel_of(batch).is_batched for batch in batches
    )
