"""A plan put to work: the merged model of several members."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.convolution import GroupedConvolution
from nasflow.merge.kernels.linear import BatchedLinear
from nasflow.merge.kernels.loop import overwriting_nothing
from nasflow.merge.kernels.norm import BatchedBatchNorm
from nasflow.merge.kernels.pointwise import Pairwise, Pointwise
from nasflow.merge.layout import Layout, convert, dense_images, join, split
from nasflow.merge.plan import Batch, LogicalPlan, Operation
from nasflow.merge.shapes import Scalar
from nasflow.merge.stacks import Bench, ParameterStack

Operand = Callable[[dict[Any, Any]], Any]

_OUTPUT_NOT_KEPT = (GroupedConvolution, BatchedLinear, BatchedBatchNorm, Pairwise)


@dataclass(frozen=True)
class _Piece:
    """Rows `start..stop` of what a batch gave."""

    batch: int
    start: int
    stop: int


@dataclass
class _Step:
    """A batch in the order of execution: where its inputs come from, what runs, which values are done with after."""

    run: Callable[[list[Any], bool], Any]
    operands: list[Callable[[dict[Any, Any]], Any]]
    splits: list[tuple[list[_Piece], list[int]]]
    done: list[Any]


class MergedModel:
    """All members' models as one program over stacked values.

    Building it moves the members' tensors into stacks, of which their own become views: a member's `state_dict` stays
    current, and a member that leaves needs no conversion.

    Args:
        plan: with its batches.
        streams: a member's random stream, in force inside `with`; one a member.
        generators: a member's generator of random numbers on the CPU; one a member.
        failed: called with a member's position and the exception of its own code.

    Attributes:
        stacks: the parameters that autograd sees.
        gathers_at: how many inputs of each of the plan's batches (the last entry: of the outputs) have to be put
            together from several values.
    """

    def __init__(
        self,
        plan: LogicalPlan,
        streams: Sequence[AbstractContextManager[Any]],
        generators: Sequence[torch.Generator],
        failed: Callable[[int, BaseException], None],
    ):
        self.plan = plan
        self.stacks: list[ParameterStack] = []
        self.gathers_at = [0] * (len(plan.batches) + 1)
        self._place: dict[Operation, tuple[int, int]] = {}
        self._layout: list[Layout] = []
        self._rows: list[int] = []
        self._kernels: list[Kernel | None] = []
        self._requests: list[list[tuple[list[_Piece], Layout]]] = []
        for index, batch in enumerate(plan.batches):
            for row, operation in enumerate(batch.operations):
                self._place[operation] = (index, row)
            self._lay_out(batch, Bench(_members(batch), streams, generators, failed))
        self._outputs = self._pieces(plan.outputs)
        self._steps = self._assemble()

    @property
    def gathers(self) -> int:
        """How often a step's input has to be put together from several values."""
        return sum(self.gathers_at)

    def __call__(self, x: torch.Tensor, training: bool) -> torch.Tensor:
        """The members' outputs `[n, B, ...]` for one batch `[B, ...]` that all read."""
        values: dict[Any, Any] = {}
        for index, step in enumerate(self._steps):
            if self._kernels[index] is None and self.plan.batches[index].kernel is None:
                value: Any = x
            else:
                value = step.run([operand(values) for operand in step.operands], training)
            values[index] = value
            for pieces, sizes in step.splits:
                values.update(zip(pieces, split(value, sizes, self._rows[index], self._layout[index]), strict=True))
            for key in step.done:
                del values[key]
        result: torch.Tensor = self._operand(self._outputs, Layout.STACK)(values)
        return result

    def _lay_out(self, batch: Batch, bench: Bench) -> None:
        """Make the batch's kernel and settle what it reads, in which layouts."""
        first = batch.operations[0]
        requests: list[tuple[list[_Piece], Layout]] = []
        kernel = None
        if first.is_shared:
            for source in first.inputs:
                requests.append((self._pieces([source]), self._layout[self._place[source][0]]))
            layout = Layout.SCALAR if isinstance(first.node.spec, Scalar) else Layout.SHARED
        else:
            operands = [
                self._pieces([operation.inputs[j] for operation in batch.operations]) for j in range(len(first.inputs))
            ]
            given = [self._layout[pieces[0].batch] for pieces in operands]
            wanted, layout = batch.kernel.layouts(first.node, given)
            requests = list(zip(operands, wanted, strict=True))
            kernel = batch.kernel([operation.node for operation in batch.operations], bench)
            self.stacks += bench.stacks
        self._kernels.append(kernel)
        self._requests.append(requests)
        self._layout.append(layout)
        self._rows.append(len(batch.operations))

    def _pieces(self, sources: Sequence[Operation]) -> list[_Piece]:
        """Where the rows of a value come from, runs drawn together."""
        home = self._place[sources[0]][0]
        if sources[0].is_shared or self._layout[home] is Layout.SCALAR:
            return [_Piece(home, 0, self._rows[home])]
        pieces: list[_Piece] = []
        for source in sources:
            batch, row = self._place[source]
            if pieces and pieces[-1].batch == batch and pieces[-1].stop == row:
                pieces[-1] = _Piece(batch, pieces[-1].start, row + 1)
            else:
                pieces.append(_Piece(batch, row, row + 1))
        return pieces

    def _assemble(self) -> list[_Step]:
        wanted: dict[int, set[_Piece]] = defaultdict(set)
        last: dict[Any, int] = {}
        requests = [(index, pieces) for index, several in enumerate(self._requests) for pieces, _ in several]
        requests.append((len(self._requests), self._outputs))
        for index, pieces in requests:
            self.gathers_at[index] += len(pieces) > 1
            for piece in pieces:
                last[piece.batch] = index
                if not self._is_whole(piece):
                    wanted[piece.batch].add(piece)
                    last[piece] = index
        steps = []
        for index, batch in enumerate(self.plan.batches):
            operands = [self._operand(pieces, layout, self._rows[index]) for pieces, layout in self._requests[index]]
            splits = _partitions(wanted[index], self._rows[index])
            steps.append(_Step(self._runner(index, batch), operands, splits, []))
            for pieces, _ in splits:
                for piece in pieces:
                    last.setdefault(piece, index)
        for key, index in last.items():
            if index < len(steps):
                steps[max(index, key if isinstance(key, int) else key.batch)].done.append(key)
        self._settle_in_place(last)
        return steps

    def _runner(self, index: int, batch: Batch) -> Callable[[list[Any], bool], Any]:
        kernel = self._kernels[index]
        if kernel is not None:
            return kernel
        return overwriting_nothing(batch.operations[0].node)

    def _is_whole(self, piece: _Piece) -> bool:
        return piece.start == 0 and piece.stop == self._rows[piece.batch]

    def _operand(
        self, pieces: list[_Piece], target: Layout, rows: int | None = None
    ) -> Callable[[dict[Any, Any]], Any]:
        """A function that puts a value together from what earlier steps gave."""
        total = rows or len(self.plan.outputs)
        keys = [piece.batch if self._is_whole(piece) else piece for piece in pieces]
        layouts = [self._layout[piece.batch] for piece in pieces]
        if len(pieces) == 1:
            key, source = keys[0], layouts[0]
            if source is target is Layout.CHANNELS and not self._is_whole(pieces[0]):
                return lambda values: dense_images(values[key])
            if source is target or source is Layout.SCALAR:
                return lambda values: values[key]
            return lambda values: convert(values[key], total, source, target)
        if all(layout is layouts[0] for layout in layouts) and layouts[0] is not Layout.LIST:
            common, whole = layouts[0], [self._is_whole(piece) for piece in pieces]
            return lambda values: convert(join([values[key] for key in keys], common, whole), total, common, target)
        sizes = [piece.stop - piece.start for piece in pieces]
        parts = list(zip(keys, sizes, layouts, strict=True))
        if Layout.LIST in layouts:
            return lambda values: convert(
                [row for key, size, layout in parts for row in convert(values[key], size, layout, Layout.LIST)],
                *(total, Layout.LIST, target),
            )
        return lambda values: join([convert(values[key], size, layout, target) for key, size, layout in parts], target)

    def _settle_in_place(self, last: dict[Any, int]) -> None:
        """Let an activation overwrite what only it reads and nothing keeps for its backward."""
        for index, kernel in enumerate(self._kernels):
            if not isinstance(kernel, Pointwise):
                continue
            pieces, layout = self._requests[index][0]
            source = pieces[0]
            readers = sum(p.batch == source.batch for several in self._requests for many, _ in several for p in many)
            readers += sum(piece.batch == source.batch for piece in self._outputs)
            alone = len(pieces) == 1 and self._is_whole(source) and readers == 1
            if (
                alone
                and layout is self._layout[source.batch]
                and isinstance(self._kernels[source.batch], _OUTPUT_NOT_KEPT)
            ):
                kernel.overwrite = True


def _members(batch: Batch) -> tuple[int, ...]:
    return tuple(operation.member for operation in batch.operations if operation.member is not None)


def _partitions(pieces: set[_Piece], rows: int) -> list[tuple[list[_Piece], list[int]]]:
    """Splits of a value into runs that give all pieces; pieces that overlap need splits of their own."""
    splits: list[list[_Piece]] = []
    for piece in sorted(pieces, key=lambda piece: (piece.start, piece.stop)):
        for chain in splits:
            if chain[-1].stop <= piece.start:
                chain.append(piece)
                break
        else:
            splits.append([piece])
    return [_filled(chain, rows) for chain in splits]


def _filled(chain: list[_Piece], rows: int) -> tuple[list[_Piece], list[int]]:
    """The chain with its gaps as pieces that nobody reads."""
    whole: list[_Piece] = []
    at = 0
    for piece in [*chain, _Piece(chain[0].batch, rows, rows)]:
        if piece.start > at:
            whole.append(_Piece(piece.batch, at, piece.start))
        if piece.start < rows:
            whole.append(piece)
            at = piece.stop
    return whole, [piece.stop - piece.start for piece in whole]
