"""Batches of a merged model that follow each other and run from a tape."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nasflow.merge.layout import Layout
from nasflow.merge.tape import Spot, Tape, Tapeable

_MOST_SIZES = 8  # of batches for which recordings are kept

OUTPUTS = -1
"""Stands for the model's outputs where a batch's index is expected."""

Source = tuple[int, int, int]
"""Rows `start` to `stop` of what a batch gives: (batch, start, stop)."""


@dataclass(frozen=True)
class Stretch:
    """One batch of a region.

    Attributes:
        index: of the batch.
        inputs: for each input where its rows come from, and the layout the kernel wants it in.
    """

    index: int
    kernel: Tapeable
    inputs: list[tuple[list[Source], Layout]]


@dataclass
class _Recording:
    tape: Tape
    imports: list[Spot]
    exports: list[Spot]
    runs: int = 0


class Region:
    """Runs its batches from a tape, as one node of autograd.

    Args:
        stretches: in order.
        rows: how many rows a batch's value has, by index; None of a value that all rows read.
        exports: whose values are read outside.
        outputs: where the rows of the model's outputs come from, if all of them do from here.

    Attributes:
        imports: the batches before it that it reads.
        exports: as given, and `OUTPUTS` if it gives those.
    """

    def __init__(
        self,
        stretches: Sequence[Stretch],
        rows: dict[int, int | None],
        exports: Sequence[int],
        outputs: list[Source] | None = None,
    ):
        self._stretches = list(stretches)
        self._rows = rows
        self._outputs = outputs
        own = {stretch.index for stretch in stretches}
        read = [source[0] for stretch in stretches for sources, _ in stretch.inputs for source in sources]
        self.imports = [index for index in dict.fromkeys(read) if index not in own]
        self.exports = [*exports, *([OUTPUTS] if outputs else [])]
        self._recordings: dict[Hashable, _Recording] = {}
        self._parameter_grads: dict[torch.Tensor, torch.Tensor] = {}
        self._anchor = torch.zeros((), requires_grad=True)  # so that autograd calls the backward

    @property
    def first(self) -> int:
        """The index of its first batch."""
        return self._stretches[0].index

    def __contains__(self, index: int) -> bool:
        return self._stretches[0].index <= index <= self._stretches[-1].index

    def __call__(self, imports: Sequence[torch.Tensor], training: bool) -> tuple[torch.Tensor, ...]:
        """The values of `exports` from those of `imports`."""
        recording = self._recording(imports, training)
        outputs: tuple[torch.Tensor, ...] = _Run.apply(self, recording, self._anchor, *imports)  # type: ignore[no-untyped-call]
        return outputs

    def _recording(self, imports: Sequence[torch.Tensor], training: bool) -> _Recording:
        kinds = tuple((value.shape, value.dtype, value.requires_grad) for value in imports)
        key = (training, torch.is_grad_enabled(), kinds)
        recording = self._recordings.get(key)
        if recording is None:
            if len(self._recordings) >= _MOST_SIZES:
                del self._recordings[next(iter(self._recordings))]
            with torch.no_grad():
                recording = self._recordings[key] = self._record(imports, training)
        return recording

    def _record(self, imports: Sequence[torch.Tensor], training: bool) -> _Recording:
        tape = Tape(self._parameter_grads)
        spots: dict[int, Spot] = {}
        for index, value in zip(self.imports, imports, strict=True):
            spots[index] = Spot(torch.empty_like(value), value.requires_grad)
        for stretch in self._stretches:
            inputs = [self._input(spots, *wanted, stretch.index) for wanted in stretch.inputs]
            spots[stretch.index] = stretch.kernel.record(tape, inputs, training)
        if self._outputs:
            spots[OUTPUTS] = tape.join([spots[index].rows(start, stop) for index, start, stop in self._outputs])
        return _Recording(tape, [spots[i] for i in self.imports], [spots[i] for i in self.exports])

    def _input(self, spots: dict[int, Spot], sources: list[Source], layout: Layout, reader: int) -> list[Spot]:
        home = spots[sources[0][0]]
        if self._rows[sources[0][0]] is not None:
            return [spots[index].rows(start, stop) for index, start, stop in sources]
        if layout is Layout.SHARED:
            return [home]
        return [Spot(home.data.expand(self._rows[reader] or 1, *home.data.shape), needs_grad=False)]

    def start(self, recording: _Recording, imports: Sequence[torch.Tensor]) -> tuple[torch.Tensor, ...]:
        """The forward: values go in and out by copy, for the places of a recording are used again."""
        recording.runs += 1
        for spot, value in zip(recording.imports, imports, strict=True):
            spot.data.copy_(value)
        recording.tape.forward()
        return tuple(spot.data.clone() for spot in recording.exports)

    def finish(self, recording: _Recording, grads: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """The backward: gradients of the parameters are put in their places, those of `imports` are returned."""
        earlier = {tensor: tensor.grad.clone() for tensor in self._parameter_grads if tensor.grad is not None}
        recording.tape.backward(grads, recording.exports, recording.imports)
        for tensor, grad in self._parameter_grads.items():
            tensor.grad = grad
        for tensor, grad in earlier.items():
            self._parameter_grads[tensor].add_(grad)
        return [spot.grad.clone() if spot.needs_grad else None for spot in recording.imports]


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: Region, recording: _Recording, anchor: Any, *imports: torch.Tensor) -> Any:
        outputs = region.start(recording, imports)
        ctx.region, ctx.recording, ctx.run = region, recording, recording.runs
        return outputs

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[Any, ...]:
        if ctx.run != ctx.recording.runs:
            raise RuntimeError("a merged model's values are gone, for it has run again since; run its backward first")
        return (None, None, None, *ctx.region.finish(ctx.recording, grads))
