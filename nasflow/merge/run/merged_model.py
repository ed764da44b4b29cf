"""The merged model of several members, made from a plan."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import count, groupby, repeat
from typing import Any

import torch

from nasflow.autocast import without_casts
from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.convolution import GroupedConvolution
from nasflow.merge.kernels.linear import BatchedLinear
from nasflow.merge.kernels.loop import Loop, overwriting_nothing
from nasflow.merge.kernels.norm import BatchedBatchNorm
from nasflow.merge.kernels.pointwise import Pairwise, Pointwise
from nasflow.merge.planning.logical_plan import Batch, LogicalPlan, Operation
from nasflow.merge.run.autograd_fallback import Nested
from nasflow.merge.tape.region import OUTPUTS, LossesOf, Region, Source, Stretch
from nasflow.merge.tape.tape import Tapeable
from nasflow.merge.trace.node import tensors_of
from nasflow.merge.trace.op_properties import runs_own_code
from nasflow.merge.trace.shape_inference import Scalar, Spec
from nasflow.merge.values.layout import Layout, convert, dense_images, join, split
from nasflow.merge.values.parameter_stacks import Bench, OwnCode, Shelf
from nasflow.merge.values.row_ranges import Piece, partitions

Operand = Callable[[dict[Any, Any]], Any]

_MOST_HELD = 32 * 2**20  # bytes of a member's values that a tape may hold for a batch without a backward
_LEAST = 3  # batches of a region: in shorter ones, copying values in and out costs more than is gained
_OUTPUT_NOT_KEPT = (GroupedConvolution, BatchedLinear, BatchedBatchNorm, Pairwise)


@dataclass
class _Step:
    """A batch, or a region, in the order of execution.

    Attributes:
        run: computes values by index, from earlier ones.
        splits: indexes of values to split, with their pieces and the pieces' sizes.
        done: values that nothing reads afterwards.
    """

    run: Callable[[dict[Any, Any], bool, int], dict[int, Any]]
    splits: list[tuple[int, list[Piece], list[int]]]
    done: list[Any]


class MergedModel:
    """All members' models as one program over stacked values.

    Building it moves the members' tensors into stacks, and their own become views of these: a member's `state_dict`
    stays current, and a member that leaves needs no conversion.

    Args:
        plan: with its batches.
        streams: a member's random stream, active inside `with`; one for each member.
        generators: a member's generator of random numbers on the CPU; one for each member.
        own_code: see `Bench`.

    Attributes:
        stacks: the parameters that autograd sees.
        regions: the plan's batches that run from a tape.
        gathers_at: how many inputs of each of the plan's batches (the last entry: of the outputs) have to be gathered
            from several values.
    """

    def __init__(
        self,
        plan: LogicalPlan,
        streams: Sequence[AbstractContextManager[Any]],
        generators: Sequence[torch.Generator],
        own_code: OwnCode,
    ):
        self.plan = plan
        shelf = Shelf()
        self.stacks = shelf.stacks
        self.gathers_at = [0] * (len(plan.batches) + 1)
        self._place: dict[Operation, tuple[int, int]] = {}
        self._layout: list[Layout] = []
        self._rows: list[int] = []
        self._kernels: list[Kernel | None] = []
        self._requests: list[list[tuple[list[Piece], Layout]]] = []
        for index, batch in enumerate(plan.batches):
            self._place.update(zip(batch.operations, zip(repeat(index), count()), strict=False))
            self._lay_out(batch, Bench(_members(batch), streams, generators, own_code, shelf))
        self._loops = [kernel for kernel in self._kernels if isinstance(kernel, Loop) and kernel.is_own]
        self._outputs = self._pieces(plan.outputs)
        self._inputs = [index for index, batch in enumerate(plan.batches) if batch.kernel is None]
        for index, several in enumerate([*self._requests, [(self._outputs, Layout.STACK)]]):
            self.gathers_at[index] = sum(len(pieces) > 1 for pieces, _ in several)
        self._result = self._operand(self._outputs, Layout.STACK)
        self._settle_in_place()
        self.regions = self._find_regions()
        self._steps = self._assemble(self.regions)

    @property
    def operations_by_member(self) -> list[list[tuple[int, Operation, str]]]:
        """Each member's operations: the batch's index, the operation, and its kernel, `on a tape` if so."""
        found: list[list[tuple[int, Operation, str]]] = [[] for _ in self.plan.graphs]
        for index, batch in enumerate(self.plan.batches):
            taped = any(index in region for region in self.regions)
            name = f"{batch.kernel.__name__}{' on a tape' * taped}" if batch.kernel else "input"
            for operation in batch.operations:
                if operation.member is not None:
                    found[operation.member].append((index, operation, name))
        return found

    @property
    def has_opaque(self) -> bool:
        """Whether it calls members' own modules as they are."""
        return any(graph.has_opaque for graph in self.plan.graphs)

    @property
    def gathers(self) -> int:
        """How often a step's input has to be gathered from several values."""
        return sum(self.gathers_at)

    def __call__(self, x: torch.Tensor, training: bool, taped: bool | None = None, call: int = 0) -> torch.Tensor:
        """Return the members' outputs `[n, B, ...]` for one batch `[B, ...]` that all read, or `[n, B, ...]`, if not.

        Args:
            taped: whether regions run from their tapes; by default they do outside of autocast, and without a backward
                only if few bytes stay in memory by that.
            call: a number for each call before their backward.
        """
        values: dict[Any, Any] = dict.fromkeys(self._inputs, x)
        on_tape = _is_taped(x, taped) and (torch.is_grad_enabled() or not self._is_large(x))
        for step in self._steps if on_tape else self._steps_of_autograd:
            values.update(step.run(values, training, call))
            for i, pieces, sizes in step.splits:
                values.update(zip(pieces, split(values[i], sizes, self._rows[i], self._layout[i]), strict=True))
            for key in step.done:
                del values[key]
        result: torch.Tensor = values[OUTPUTS] if OUTPUTS in values else self._result(values)
        return result

    def backpropagate(self, x: torch.Tensor, losses_of: LossesOf, taped: bool | None = None) -> torch.Tensor:
        """Return the members' losses `[n]` for one batch in training; gradients are set on stacks and parameters."""
        region = self._whole
        if region is not None and not x.requires_grad and _is_taped(x, taped):
            imports = [convert(x, *self._form(index)) for index in region.imports]
            return region.backpropagate(imports, losses_of)
        outputs = self(x, True, taped)
        losses, gradient = losses_of(outputs.detach())
        with without_casts(outputs.device.type):
            outputs.backward(gradient)
        return losses

    def _is_large(self, x: torch.Tensor) -> bool:
        """Whether tapes would hold many bytes for such a batch: all values, not only those that are read again."""
        traced = self.plan.graphs[0].input.spec.shape
        samples = x.shape[x.ndim - len(traced)]
        return bool(self._held * samples > _MOST_HELD * traced[0])

    @cached_property
    def _held(self) -> int:
        """The bytes that tapes hold of a member's values, at most, for a batch of the traced size."""
        found: Counter[int | None] = Counter()
        for region in self.regions:
            for operation in (
                one for i, batch in enumerate(self.plan.batches) if i in region for one in batch.operations
            ):
                spec = operation.node.spec
                found[operation.member] += spec.numbers * spec.dtype.itemsize
        return max(found.values(), default=0)

    def take_unreached(self) -> set[int]:
        """Return the members with own code that has passed no gradient on in the last backward, as it mostly does."""
        return set().union(*(loop.take_unreached() for loop in self._loops))

    @cached_property
    def _whole(self) -> Region | None:
        """The region that includes everything, if there is one: it needs no autograd."""
        if len(self._steps) != 1 or len(self.regions) != 1:
            return None
        [region] = self.regions
        return region if region.exports == [OUTPUTS] and set(region.imports) <= set(self._inputs) else None

    def _lay_out(self, batch: Batch, bench: Bench) -> None:
        """Make the batch's kernel, and determine its inputs and their layouts."""
        first = batch.operations[0]
        requests: list[tuple[list[Piece], Layout]] = []
        kernel = None
        if first.is_shared:
            for source in first.inputs:
                requests.append((self._pieces([source]), self._layout[self._place[source][0]]))
            layout = Layout.SCALAR if isinstance(first.node.spec, Scalar) else Layout.SHARED
        elif batch.kernel is None:  # members read different batches
            layout = Layout.STACK
        else:
            operands = [
                self._pieces([operation.inputs[j] for operation in batch.operations]) for j in range(len(first.inputs))
            ]
            given = [self._layout[pieces[0].batch] for pieces in operands]
            wanted, layout = batch.kernel.layouts(first.node, given)
            requests = list(zip(operands, wanted, strict=True))
            kernel = batch.kernel([operation.node for operation in batch.operations], bench)
        self._kernels.append(kernel)
        self._requests.append(requests)
        self._layout.append(layout)
        self._rows.append(len(batch.operations))

    def _pieces(self, sources: Sequence[Operation]) -> list[Piece]:
        """Return where the rows of a value come from, with adjacent rows as one piece."""
        first = sources[0]
        home = self._place[first][0]
        is_one = first.is_shared and all(source is first for source in sources)
        if is_one or self._layout[home] is Layout.SCALAR:
            return [Piece(home, 0, self._rows[home])]
        runs: list[list[int]] = []
        for batch, row in map(self._place.__getitem__, sources):
            if runs and runs[-1][0] == batch and runs[-1][2] == row:
                runs[-1][2] += 1
            else:
                runs.append([batch, row, row + 1])
        return [Piece(*run) for run in runs]

    @cached_property
    def _steps_of_autograd(self) -> list[_Step]:
        """The steps without regions, because tapes do no automatic casts."""
        return self._assemble([])

    def _assemble(self, regions: Sequence[Region]) -> list[_Step]:
        inside = {index: region for region in regions for index in range(len(self._requests)) if index in region}
        wanted: dict[int, set[Piece]] = defaultdict(set)
        last: dict[Any, int] = {}
        for index, several in enumerate([*self._requests, [(self._outputs, Layout.STACK)]]):
            region = inside.get(index)
            for piece in (piece for pieces, _ in several for piece in pieces):
                if region is not None:
                    last[piece.batch] = region.first
                    continue
                last[piece.batch] = index
                if not self._is_whole(piece):
                    wanted[piece.batch].add(piece)
                    last[piece] = index
        steps: dict[int, _Step] = {}
        for index in range(len(self._requests)):
            region = inside.get(index)
            if (index in self._inputs and index not in wanted) or (region and index != region.first):
                continue
            run, given = (self._region_run(region), region.exports) if region else (self._batch_run(index), [index])
            splits = [(i, *parts) for i in given if i in wanted for parts in partitions(wanted[i], self._rows[i])]
            steps[index] = _Step(run, splits, [])
            for key in (key for i, pieces, _ in splits for key in [i, *pieces]):
                last[key] = max(index, last.get(key, 0))
        for key, index in last.items():
            made = key if isinstance(key, int) else key.batch
            if index in steps and (made not in inside or made in inside[made].exports):
                steps[index].done.append(key)
        return list(steps.values())

    def _batch_run(self, index: int) -> Callable[[dict[Any, Any], bool, int], dict[int, Any]]:
        if index in self._inputs:
            return lambda values, training, call: {}
        batch, kernel = self.plan.batches[index], self._kernels[index]
        run = overwriting_nothing(batch.operations[0].node) if kernel is None else kernel
        operands = [self._operand(pieces, layout, self._rows[index]) for pieces, layout in self._requests[index]]
        return lambda values, training, call: {index: run([operand(values) for operand in operands], training)}

    def _region_run(self, region: Region) -> Callable[[dict[Any, Any], bool, int], dict[int, Any]]:
        def run(values: dict[Any, Any], training: bool, call: int) -> dict[int, Any]:
            imports = [convert(values[index], *self._form(index)) for index in region.imports]
            exports = dict(zip(region.exports, region(imports, training, call), strict=True))
            for index in exports.keys() - {OUTPUTS}:
                rows, layout, on_tape = self._form(index)
                exports[index] = convert(exports[index], rows, on_tape, layout)
            return exports

        return run

    def _form(self, index: int) -> tuple[int, Layout, Layout]:
        """Return a value's number of rows, its layout, and its layout on a tape."""
        return self._rows[index], self._layout[index], self._layout_on_tape(index)

    def _layout_on_tape(self, index: int) -> Layout:
        if self._layout[index] is not Layout.LIST:
            return self._layout[index]
        spec = self.plan.batches[index].operations[0].node.spec
        return Layout.CHANNELS if isinstance(spec, Spec) and len(spec.shape) == 4 else Layout.STACK

    def _find_regions(self) -> list[Region]:
        """Return runs of batches that can run from a tape, if enough of their kernels record themselves."""
        regions = []
        for tapeable, run in groupby(range(len(self._requests)), self._is_tapeable):
            indexes = list(run)
            native = sum(_is_native(self._kernels[index]) for index in indexes)
            if tapeable and len(indexes) >= _LEAST and 2 * native >= len(indexes):
                regions.append(self._region(indexes))
        return regions

    def _is_tapeable(self, index: int) -> bool:
        """Whether the batch's inputs and output are tensors with one row for each member."""
        batch = self.plan.batches[index]
        if self._kernels[index] is None or runs_own_code(batch.operations[0].node):
            return False
        nodes = [batch.operations[0].node, *batch.operations[0].node.inputs]
        return all(isinstance(node.spec, Spec) for node in nodes)

    def _region(self, indexes: Sequence[int]) -> Region:
        def sources(pieces: Sequence[Piece]) -> list[Source]:
            return [(piece.batch, piece.start, piece.stop) for piece in pieces]

        stretches = []
        for i in indexes:
            requests = [(sources(pieces), layout) for pieces, layout in self._requests[i]]
            stretches.append(Stretch(i, self._on_tape(i), requests))
        outside = [several for i, several in enumerate(self._requests) if i not in indexes]
        read = {piece.batch for several in outside for pieces, _ in several for piece in pieces}
        gives_outputs = all(
            piece.batch in indexes and self._layout[piece.batch] is Layout.STACK for piece in self._outputs
        )
        if not gives_outputs:
            read.update(piece.batch for piece in self._outputs)
        forms = {index: (self._layout_on_tape(index), rows) for index, rows in enumerate(self._rows)}
        return Region(stretches, forms, [i for i in indexes if i in read], sources(self._outputs) * gives_outputs)

    def _on_tape(self, index: int) -> Tapeable:
        kernel = self._kernels[index]
        if isinstance(kernel, Tapeable) and kernel.is_tapeable:
            return kernel
        assert kernel is not None  # noqa: S101 - `_is_tapeable` said so
        wanted = [layout for _, layout in self._requests[index]]
        return Nested(kernel, wanted, self._layout[index], _parameters(kernel))

    def _is_whole(self, piece: Piece) -> bool:
        return piece.start == 0 and piece.stop == self._rows[piece.batch]

    def _operand(self, pieces: list[Piece], target: Layout, rows: int | None = None) -> Callable[[dict[Any, Any]], Any]:
        """Return a function that joins a value from those of earlier steps."""
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
        if all(layout is layouts[0] for layout in layouts) and layouts[0] not in (Layout.LIST, Layout.SHARED):
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

    def _settle_in_place(self) -> None:
        """Let an activation overwrite an input that nothing else reads and that no backward needs."""
        requests = [pieces for several in self._requests for pieces, _ in several]
        readers = Counter(piece.batch for pieces in [*requests, self._outputs] for piece in pieces)
        for index, kernel in enumerate(self._kernels):
            if not isinstance(kernel, Pointwise):
                continue
            pieces, layout = self._requests[index][0]
            source = pieces[0]
            kernel.overwrite = (
                len(pieces) == 1
                and self._is_whole(source)
                and readers[source.batch] == 1
                and layout is self._layout[source.batch]
                and isinstance(self._kernels[source.batch], _OUTPUT_NOT_KEPT)
            )


def _is_taped(x: torch.Tensor, taped: bool | None) -> bool:
    return not torch.is_autocast_enabled(x.device.type) if taped is None else taped


def _members(batch: Batch) -> tuple[int, ...]:
    return tuple(operation.member for operation in batch.operations if operation.member is not None)


def _is_native(kernel: Kernel | None) -> bool:
    return isinstance(kernel, Tapeable) and kernel.is_tapeable


def _parameters(kernel: Kernel) -> list[torch.Tensor]:
    """Return the tensors that a kernel trains: stacks, or the members' own if it runs row by row."""
    if kernel.is_batched:
        return [stack.tensor for stack in kernel.bench.stacks]
    return [tensor for node in kernel.nodes for tensor in tensors_of(node) if tensor.requires_grad]
