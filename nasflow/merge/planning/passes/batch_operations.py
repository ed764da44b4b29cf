"""Batch operations: equal operations of different members run as one kernel.

The agenda of Neubig, Goldberg and Dyer 2017 (on-the-fly operation batching): of all operations that are ready, run
those with the same key together, and choose the key so that groups grow large. Two rules for this choice are tried.
"""

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import count
from typing import Protocol

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.kernels.pointwise import Pointwise
from nasflow.merge.kernels.registry import kernels_for
from nasflow.merge.planning.logical_plan import Batch, LogicalPlan, Operation
from nasflow.merge.planning.passes.ties import Ties
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import is_changing, is_random, passes_gradients
from nasflow.merge.trace.signature import number_of


class Chooser(Protocol):
    """Chooses the kernel of a batch.

    Attributes:
        is_measured: whether it knows what is faster, even for a single operation.
    """

    is_measured: bool

    def __call__(self, node: Node, rows: int, kernels: Sequence[type[Kernel]], shared: bool) -> type[Kernel]:
        """Return one of `kernels`, for `rows` rows like `node`."""

    def apart(self, node: Node, kernel: type[Kernel], rows: Sequence[int]) -> bool:
        """Whether groups of so many rows, each as an earlier kernel left it, should not be gathered."""


class FirstChoice:
    """Chooses the first kernel that fits, for as many rows as possible, without measurements."""

    is_measured = False

    def __call__(self, node: Node, rows: int, kernels: Sequence[type[Kernel]], shared: bool) -> type[Kernel]:
        """Return the first kernel."""
        return kernels[0]

    def apart(self, node: Node, kernel: type[Kernel], rows: Sequence[int]) -> bool:
        """Return False: groups are always gathered."""
        return False


class BatchOperations:
    """Groups operations into batches.

    Args:
        choose: which kernel runs a batch.
        device: the type of device it will run on.
        choices: the kernels of nodes that were planned before. They stay when their group shrinks, so that the bits of
            the remaining members stay the same; new choices are added.
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
        ties = Ties(plan)
        agenda = _Agenda(plan, self._keys(plan, ties))
        groups = min([agenda.run(agenda.most_to_come), agenda.run(agenda.shallowest)], key=len)
        stackable = ties.stackable(groups, self._kernel)
        plan.batches = []
        home: dict[Operation, int] = {}
        for group in groups:
            tied = group[0] in ties
            batch = self._looped(group) if tied and group[0] not in stackable else self._batch(group)
            for part in [batch] if tied else self._as_they_lie(batch, plan.batches, home):
                home.update(dict.fromkeys(part.operations, len(plan.batches)))
                plan.batches.append(part)
        _order_rows(plan.batches, home, ties)

    def _keys(self, plan: LogicalPlan, ties: Ties) -> list[Hashable]:
        """Return the key of each operation, in the plan's order."""
        flows = _gradient_flows(plan)
        keys: list[Hashable] = []
        shared: dict[Operation, int] = {}
        for operation in plan.operations:
            if operation.member is None:
                shared[operation] = len(shared)
                keys.append(operation)
                continue
            if operation.node.op == "input":
                keys.append(operation.node.signature)
                continue
            sources = tuple([shared.get(source) for source in operation.inputs])
            known = (operation.node.signature, sources, flows.get(operation), ties.key(operation))
            key = self._batch_keys.get(known)
            if key is None:
                kernel = self._fitting(operation)[0]
                key = number_of((kernel, kernel.batch_key(operation.node), *known[1:]))
                self._batch_keys[known] = key
            keys.append(key)
        return keys

    def _fitting(self, operation: Operation) -> list[type[Kernel]]:
        shared = _reads_one(operation)
        key = (operation.node.signature, operation.node.opaque, shared)
        if key not in self._kernels:
            self._kernels[key] = kernels_for(operation.node, shared, self._device)
        return self._kernels[key]

    def _as_they_lie(self, batch: Batch, earlier: list[Batch], home: dict[Operation, int]) -> list[Batch]:
        """Return the batch, or its parts by the earlier batches that they read as they are, if gathering costs more."""
        first = batch.operations[0]
        if batch.kernel is None or not batch.kernel.is_batched or len(first.inputs) != 1 or first.inputs[0].is_shared:
            return [batch]
        parts: dict[int, list[Operation]] = defaultdict(list)
        for operation in batch.operations:
            parts[home[operation.inputs[0]]].append(operation)
        if len(parts) == 1:
            return [batch]
        whole = all(
            [operation.inputs[0] for operation in part] == earlier[index].operations for index, part in parts.items()
        )
        rows = [len(part) for part in parts.values()]
        if not whole or not self._choose.apart(first.node, batch.kernel, rows):
            return [batch]
        return [Batch(part, batch.kernel, "measured: gathering costs more") for part in parts.values()]

    def _batch(self, group: list[Operation]) -> Batch:
        first = group[0]
        if first.node.op == "input":
            return Batch(group, None, "read once for all" if first.is_shared else "each member's own")
        if first.is_shared:
            return Batch(group, Loop, "the same for all members")
        kernel = self._kernel(group)
        self._choices.update({operation.node: kernel for operation in group})
        if len(group) == 1:
            return Batch(group, kernel, "no other member does this at this point")
        if kernel is not Loop:
            return Batch(group, kernel)
        only = len(self._fitting(first)) == 1
        return Batch(group, kernel, "no batched kernel" if only else "measured: the loop is faster")

    def _looped(self, group: list[Operation]) -> Batch:
        self._choices.update({operation.node: Loop for operation in group})
        return Batch(group, Loop, "it shares weights with an operation that runs differently")

    def _kernel(self, group: list[Operation]) -> type[Kernel]:
        """Return the kernel of a group, by its first operation."""
        first = group[0]
        kernels = self._fitting(first)
        kernel = self._choices.get(first.node)
        if kernel is not None and kernel in kernels:
            return kernel
        if len(group) == 1 and not self._choose.is_measured:
            return kernels[-1]
        return self._choose(first.node, len(group), kernels, _reads_one(first))


def _order_rows(batches: Sequence[Batch], home: dict[Operation, int], ties: Ties) -> None:
    """Order the rows of images, and of what is made of them, so that few runs have to be gathered.

    Activations take the order of their readers, because they can write each row anywhere; other operations take the
    order of what they read. Rows of vectors stay in the members' order, in which equal activations are neighbours, and
    so do those of operations that share tensors with others.
    """
    reader: dict[Operation, int] = {}
    for index in range(len(batches) - 1, -1, -1):
        for operation in batches[index].operations:
            for source in operation.inputs:
                reader[source] = index
    row: dict[Operation, int] = {}
    of_images: set[int] = set()
    for index, batch in enumerate(batches):
        first = batch.operations[0]
        if _gives_images(first) or any(home[source] in of_images for source in first.inputs):
            of_images.add(index)
        if index in of_images and batch.kernel is Pointwise:
            batch.operations.sort(key=lambda operation: reader.get(operation, len(batches)))
        elif index in of_images and first.inputs and first not in ties:
            batch.operations.sort(key=lambda operation: (home[operation.inputs[0]], row[operation.inputs[0]]))
        row.update(zip(batch.operations, count(), strict=False))


def _gives_images(operation: Operation) -> bool:
    return operation.member is not None and len(getattr(operation.node.spec, "shape", ())) == 4


class _Agenda:
    """Puts operations into groups, in an order in which inputs come first.

    Operations are represented by their positions in the plan, because with many of them lists are faster than dicts.
    """

    def __init__(self, plan: LogicalPlan, keys: Sequence[Hashable]):
        self._operations, self._keys = plan.operations, keys
        self._members = [-1 if operation.member is None else operation.member for operation in plan.operations]
        self._needs: list[int] = []
        self._readers: list[list[int]] = []
        depth: list[int] = []
        for here, before in enumerate(_befores(plan)):
            self._needs.append(len(before))
            self._readers.append([])
            depth.append(1 + max([depth[source] for source in before], default=0))
            for source in before:
                self._readers[source].append(here)
        self._to_come = [1] * len(keys)
        for here in range(len(keys) - 1, -1, -1):
            if readers := self._readers[here]:
                self._to_come[here] = 1 + max([self._to_come[reader] for reader in readers])
        depths: dict[Hashable, list[int]] = defaultdict(list)
        for key, steps in zip(keys, depth, strict=True):
            depths[key].append(steps)
        self._mean_depth = {key: sum(values) / len(values) for key, values in depths.items()}

    def most_to_come(self, ready: dict[Hashable, list[int]]) -> Hashable:
        """Return the key with the longest path to an output."""
        to_come = self._to_come
        return max(ready, key=lambda key: max([to_come[place] for place in ready[key]]))

    def shallowest(self, ready: dict[Hashable, list[int]]) -> Hashable:
        """Return the key with the lowest average depth (the rule of the paper)."""
        return min(ready, key=lambda key: self._mean_depth[key])

    def run(self, rule: Callable[[dict[Hashable, list[int]]], Hashable]) -> list[list[Operation]]:
        """Return groups of operations with one key each, in order."""
        needs = self._needs.copy()
        ready: dict[Hashable, list[int]] = defaultdict(list)
        for place, number in enumerate(needs):
            if not number:
                ready[self._keys[place]].append(place)
        groups = []
        while ready:
            group = self._one_a_member(ready, rule(ready))
            groups.append([self._operations[place] for place in group])
            for place in group:
                for reader in self._readers[place]:
                    needs[reader] -= 1
                    if not needs[reader]:
                        ready[self._keys[reader]].append(reader)
        return groups

    def _one_a_member(self, ready: dict[Hashable, list[int]], key: Hashable) -> list[int]:
        """Take the ready operations of a key, at most one for each member; the others stay ready."""
        taken: dict[int, int] = {}
        left = []
        for place in ready.pop(key):
            if taken.setdefault(self._members[place], place) != place:
                left.append(place)
        if left:
            ready[key] = left
        return [taken[member] for member in sorted(taken)]


def _befores(plan: LogicalPlan) -> Iterator[Collection[int]]:
    """Yield, for each operation, the positions of those that must run before it, each once."""
    places: dict[Operation, int] = {}
    last: dict[Hashable, int] = {}
    effects: dict[Hashable, tuple[bool, bool]] = {}
    for here, operation in enumerate(plan.operations):
        places[operation] = here
        before: Collection[int] = [places[source] for source in operation.inputs]
        node = operation.node
        if node.signature not in effects:
            effects[node.signature] = (is_random(node), is_changing(node))
        draws, changes = effects[node.signature]
        if operation.member is not None and (draws or changes):  # keep the order of the member's own forward
            states: list[Hashable] = [operation.member] * draws + [node.module] * changes
            before = [*before, *(last[state] for state in states if state in last)]
            last.update(dict.fromkeys(states, here))
        yield before if len(before) < 2 else set(before)


def _reads_one(operation: Operation) -> bool:
    """Whether the first input is the same tensor for all members."""
    return bool(operation.inputs) and operation.inputs[0].is_shared


def _gradient_flows(plan: LogicalPlan) -> dict[Operation, bool]:
    """Return, for the operations that gradients reach, whether they pass them on to what they read.

    torch skips parameters without a gradient, weight decay included, so rows with one and without are no batch.
    """
    passing: dict[Hashable, bool] = {}
    reached = set(plan.outputs)
    flows: dict[Operation, bool] = {}
    for operation in reversed(plan.operations):
        node = operation.node
        if node.signature not in passing:
            passing[node.signature] = passes_gradients(node)
        if operation in reached:
            flows[operation] = passing[node.signature]
            if flows[operation]:
                reached.update(operation.inputs)
    return flows
