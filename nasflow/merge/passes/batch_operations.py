"""Batch operations: equal operations of different members run as one kernel.

The agenda of Neubig, Goldberg and Dyer 2017 (on-the-fly operation batching): of all operations that are ready, run
those of one key together, and choose the key so that groups grow large. Two ways to choose are tried.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Protocol

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.kernels.pointwise import Pointwise
from nasflow.merge.kernels.registry import kernels_for
from nasflow.merge.knowledge import is_changing, is_random, passes_gradients
from nasflow.merge.node import Node, tensors_of
from nasflow.merge.plan import Batch, LogicalPlan, Operation
from nasflow.merge.structure import number_of


class Chooser(Protocol):
    """Picks the kernel of a batch."""

    def __call__(self, node: Node, rows: int, kernels: Sequence[type[Kernel]], shared: bool) -> type[Kernel]:
        """One of `kernels`, for so many `rows` like `node`."""

    def apart(self, node: Node, kernel: type[Kernel], rows: Sequence[int]) -> bool:
        """Whether groups of so many rows, each as an earlier kernel left it, had better not be put together."""


class FirstChoice:
    """The first kernel that fits, measured or not, for as many rows as can be."""

    def __call__(self, node: Node, rows: int, kernels: Sequence[type[Kernel]], shared: bool) -> type[Kernel]:
        """The first."""
        return kernels[0]

    def apart(self, node: Node, kernel: type[Kernel], rows: Sequence[int]) -> bool:
        """Never."""
        return False


class BatchOperations:
    """The pass.

    Args:
        choose: which kernel runs a batch.
        device: the type of device it will run on.
        choices: the kernels of nodes that were planned before. They stay when their group shrinks, and with them the
            bits of those that are left; what is chosen anew is added.
    """

    def __init__(
        self,
        choose: Chooser | None = None,
        device: str = "cpu",
        choices: dict[Node, type[Kernel]] | None = None,
    ):
        self._choose: Chooser = choose or FirstChoice()
        self._choices = {} if choices is None else choices
        self._device = device
        self._kernels: dict[Hashable, list[type[Kernel]]] = {}
        self._batch_keys: dict[Hashable, Hashable] = {}

    def __call__(self, plan: LogicalPlan) -> None:
        """Fill `plan.batches`."""
        agenda = _Agenda(plan, self._keys(plan))
        orders = [agenda.run(agenda.most_to_come), agenda.run(agenda.shallowest)]
        plan.batches = []
        home: dict[Operation, int] = {}
        for group in min(orders, key=len):
            for batch in self._as_they_lie(self._batch(group), plan.batches, home):
                home.update(dict.fromkeys(batch.operations, len(plan.batches)))
                plan.batches.append(batch)
        _order_rows(plan.batches, home)

    def _keys(self, plan: LogicalPlan) -> dict[Operation, Hashable]:
        tied, reached = _tied(plan), _reached(plan)
        keys: dict[Operation, Hashable] = {}
        shared: dict[Operation, int] = {}
        for operation in plan.operations:
            if operation.member is None:
                shared[operation] = len(shared)
            if operation.member is None or operation in tied:
                keys[operation] = operation
                continue
            sources = tuple(shared.get(source) for source in operation.inputs)
            known = (operation.node.signature, sources, operation in reached)
            key = self._batch_keys.get(known)
            if key is None:
                kernel = self._fitting(operation)[0]
                key = number_of((kernel, kernel.batch_key(operation.node), *known[1:]))
                self._batch_keys[known] = key
            keys[operation] = key
        return keys

    def _fitting(self, operation: Operation) -> list[type[Kernel]]:
        shared = _reads_one(operation)
        key = (operation.node.signature, operation.node.opaque, shared)
        if key not in self._kernels:
            self._kernels[key] = kernels_for(operation.node, shared, self._device)
        return self._kernels[key]

    def _as_they_lie(self, batch: Batch, earlier: list[Batch], home: dict[Operation, int]) -> list[Batch]:
        """The batch, or one for each earlier batch whose rows it reads as they are, where gathering them costs more."""
        first = batch.operations[0]
        if batch.kernel is None or not batch.kernel.is_batched or len(first.inputs) != 1 or first.inputs[0].is_shared:
            return [batch]
        parts: dict[int, list[Operation]] = {}
        for operation in batch.operations:
            parts.setdefault(home[operation.inputs[0]], []).append(operation)
        whole = all(
            [operation.inputs[0] for operation in part] == earlier[index].operations for index, part in parts.items()
        )
        rows = [len(part) for part in parts.values()]
        if len(parts) == 1 or not whole or not self._choose.apart(first.node, batch.kernel, rows):
            return [batch]
        return [Batch(part, batch.kernel, "measured: gathering costs more") for part in parts.values()]

    def _batch(self, group: list[Operation]) -> Batch:
        first = group[0]
        if first.node.op == "input":
            return Batch(group, None, "read once for all")
        if first.is_shared:
            return Batch(group, Loop, "the same for all members")
        kernels = self._fitting(first)
        kernel = self._choices.get(first.node)
        if kernel is None and len(group) > 1:
            kernel = self._choose(first.node, len(group), kernels, _reads_one(first))
        kernel = kernel or Loop
        self._choices.update({operation.node: kernel for operation in group})
        if kernel is not Loop:
            return Batch(group, kernel)
        if len(group) == 1:
            return Batch(group, Loop, "no other member does this at this point")
        return Batch(group, kernel, "no batched kernel" if len(kernels) == 1 else "measured: the loop is faster")


def _order_rows(batches: Sequence[Batch], home: dict[Operation, int]) -> None:
    """Order the rows of images, and of what is made of them, so that few runs have to be gathered.

    Activations have theirs as their readers are ordered, for they can write each row anywhere; all others as they find
    them in what they read. Rows of vectors stay in the members' order, in which equal activations are neighbours.
    """
    reader: dict[Operation, int] = {}
    for index in range(len(batches) - 1, -1, -1):
        for operation in batches[index].operations:
            reader.update(dict.fromkeys(operation.inputs, index))
    row: dict[Operation, int] = {}
    of_images: set[int] = set()
    for index, batch in enumerate(batches):
        first = batch.operations[0]
        if _gives_images(first) or any(home[source] in of_images for source in first.inputs):
            of_images.add(index)
        if index in of_images and batch.kernel is Pointwise:
            batch.operations.sort(key=lambda operation: reader.get(operation, len(batches)))
        elif index in of_images and first.inputs:
            batch.operations.sort(key=lambda operation: (home[operation.inputs[0]], row[operation.inputs[0]]))
        row.update({operation: position for position, operation in enumerate(batch.operations)})


def _gives_images(operation: Operation) -> bool:
    return operation.member is not None and len(getattr(operation.node.spec, "shape", ())) == 4


class _Agenda:
    """Puts operations into groups, in an order in which inputs come first."""

    def __init__(self, plan: LogicalPlan, keys: dict[Operation, Hashable]):
        self._keys = keys
        self._needs: dict[Operation, int] = {}
        self._readers: dict[Operation, list[Operation]] = defaultdict(list)
        self._depth: dict[Operation, int] = {}
        self._to_come: dict[Operation, int] = {}
        last: dict[Hashable, Operation] = {}
        effects: dict[Hashable, tuple[bool, bool]] = {}
        for operation in plan.operations:
            before: Iterable[Operation] = operation.inputs
            if len(operation.inputs) > 1:
                before = set(operation.inputs)
            node = operation.node
            if node.signature not in effects:
                effects[node.signature] = (is_random(node), is_changing(node))
            draws, changes = effects[node.signature]
            if operation.member is not None and (draws or changes):  # in the order of the member's own forward
                before = set(before)
                for state in [operation.member] * draws + [node.module] * changes:
                    if state in last:
                        before.add(last[state])
                    last[state] = operation
            self._needs[operation] = sum(1 for _ in before)
            self._depth[operation] = 1 + max((self._depth[source] for source in before), default=0)
            for source in before:
                self._readers[source].append(operation)
        for operation in reversed(plan.operations):
            readers = self._readers[operation]
            self._to_come[operation] = 1 + max((self._to_come[reader] for reader in readers), default=0)
        depths: dict[Hashable, list[int]] = defaultdict(list)
        for operation in plan.operations:
            depths[keys[operation]].append(self._depth[operation])
        self._mean_depth = {key: sum(values) / len(values) for key, values in depths.items()}

    def most_to_come(self, ready: dict[Hashable, list[Operation]]) -> Hashable:
        """The key with the longest way to an output."""
        to_come = self._to_come
        return max(ready, key=lambda key: max([to_come[operation] for operation in ready[key]]))

    def shallowest(self, ready: dict[Hashable, list[Operation]]) -> Hashable:
        """The key that comes first on average (the rule of the paper)."""
        return min(ready, key=lambda key: self._mean_depth[key])

    def run(self, rule: Callable[[dict[Hashable, list[Operation]]], Hashable]) -> list[list[Operation]]:
        """Groups of one key, in order."""
        needs = dict(self._needs)
        ready: dict[Hashable, list[Operation]] = {}
        for operation, count in needs.items():
            if not count:
                ready.setdefault(self._keys[operation], []).append(operation)
        groups = []
        while ready:
            group = _one_a_member(ready, rule(ready))
            groups.append(group)
            for operation in group:
                for reader in self._readers[operation]:
                    needs[reader] -= 1
                    if not needs[reader]:
                        ready.setdefault(self._keys[reader], []).append(reader)
        return groups


def _one_a_member(ready: dict[Hashable, list[Operation]], key: Hashable) -> list[Operation]:
    """Take the ready operations of a key, no more than one of each member; the others stay ready."""
    taken: dict[int | None, Operation] = {}
    left = []
    for operation in ready.pop(key):
        if operation.member in taken:
            left.append(operation)
        else:
            taken[operation.member] = operation
    if left:
        ready[key] = left
    return sorted(taken.values(), key=lambda operation: -1 if operation.member is None else operation.member)


def _reads_one(operation: Operation) -> bool:
    """Whether its first input is the same tensor for all members."""
    return bool(operation.inputs) and operation.inputs[0].is_shared


def _reached(plan: LogicalPlan) -> set[Operation]:
    """Operations to which gradients come; a parameter that gets none, torch does not step, not by its decay either."""
    passing: dict[Hashable, bool] = {}
    reached = set(plan.outputs)
    for operation in reversed(plan.operations):
        node = operation.node
        if node.signature not in passing:
            passing[node.signature] = passes_gradients(node)
        if passing[node.signature] and operation in reached:
            reached.update(operation.inputs)
    return reached


def _tied(plan: LogicalPlan) -> set[Operation]:
    """Operations whose tensors are those of another operation too: a row can lie in one stack only."""
    users: dict[int, Operation] = {}
    tied: set[Operation] = set()
    for operation in plan.operations:
        for tensor in tensors_of(operation.node):
            first = users.setdefault(id(tensor), operation)
            if first is not operation:
                tied |= {first, operation}
    return tied
