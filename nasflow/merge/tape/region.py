"""Consecutive batches of a merged model that run from a tape."""

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from nasflow.merge.tape.tape import Tape, Tapeable
from nasflow.merge.tape.tape_values import Spot
from nasflow.merge.values.layout import Layout

_MOST_SIZES = 8  # of batches, as many as keep their recordings
_MOST_CALLS = 64  # before a backward, as many as keep a recording each, of one size or of several together

OUTPUTS = -1
"""Stands for the model's outputs where a batch's index is expected."""

LossesOf = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]
"""Returns the members' losses `[n]` for their outputs `[n, B, ...]`, and the gradients of the losses' sum by these."""

Source = tuple[int, int, int]
"""Rows `start` to `stop` of a batch's output: (batch, start, stop)."""


@dataclass(frozen=True)
class Stretch:
    """One batch of a region.

    Attributes:
        index: of the batch.
        inputs: for each input where its rows come from, and the layout that the kernel needs.
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
    """Runs its batches from a tape, as one autograd node.

    Args:
        stretches: in order.
        forms: the layout of a batch's value and its number of rows, by index.
        exports: batches with values that are read outside.
        outputs: where the rows of the model's outputs come from, if all of them come from this region.

    Attributes:
        imports: the earlier batches that it reads.
        exports: as given, and `OUTPUTS` if it computes those.
    """

    def __init__(
        self,
        stretches: Sequence[Stretch],
        forms: Mapping[int, tuple[Layout, int]],
        exports: Sequence[int],
        outputs: list[Source] | None = None,
    ):
        self._stretches = list(stretches)
        self._forms = forms
        own = {stretch.index for stretch in stretches}
        read = [source for stretch in stretches for sources, _ in stretch.inputs for source in sources]
        self.imports = [index for index in dict.fromkeys(index for index, _, _ in read) if index not in own]
        self._exported = [[(index, 0, forms[index][1])] for index in exports] + ([outputs] if outputs else [])
        self.exports = [*exports, *([OUTPUTS] if outputs else [])]
        self._cuts = {index: {0, forms[index][1]} for index in own}
        for index, start, stop in [*read, *(outputs or [])]:
            if index in own:
                self._cuts[index] |= {start, stop}
        self._reads = Counter(
            (index, row)
            for index, start, stop in [*read, *(source for sources in self._exported for source in sources)]
            for row in range(start, stop)
        )
        self._recordings: dict[Hashable, dict[int, _Recording]] = {}  # by size and call
        self._parameter_grads: dict[torch.Tensor, torch.Tensor] = {}
        self._anchor = torch.zeros((), requires_grad=True)  # makes autograd call the backward

    @property
    def first(self) -> int:
        """The index of its first batch."""
        return self._stretches[0].index

    def __contains__(self, index: int) -> bool:
        return self._stretches[0].index <= index <= self._stretches[-1].index

    def __call__(self, imports: Sequence[torch.Tensor], training: bool, call: int = 0) -> tuple[torch.Tensor, ...]:
        """Return the values of `exports` for those of `imports`.

        Args:
            call: a number for each call before a backward, because calls can't share memory until then.
        """
        how = training, torch.is_grad_enabled(), call
        outputs: tuple[torch.Tensor, ...] = _Run.apply(self, how, self._anchor, *imports)  # type: ignore[no-untyped-call]
        return outputs

    def backpropagate(self, imports: Sequence[torch.Tensor], losses_of: LossesOf) -> torch.Tensor:
        """Return the losses, and set gradients as `finish` does. For a region that exports only `OUTPUTS`."""
        with torch.no_grad():
            recording = self.start(imports, [False] * len(imports), training=True, trains=True)
            losses, gradient = losses_of(recording.exports[0].data)
            self.finish(recording, [gradient])
        return losses

    def start(
        self, imports: Sequence[torch.Tensor], needs_grad: Sequence[bool], training: bool, trains: bool, call: int = 0
    ) -> _Recording:
        """Run the forward and return its recording. Inputs are copied, because the recording's memory is used again."""
        forms = tuple((v.shape, v.dtype, needs) for v, needs in zip(imports, needs_grad, strict=True))
        key = (training, trains, forms)
        calls = self._recordings.pop(key, {})
        place = call if trains else 0  # without a backward, nothing refers to the memory any more
        recording = calls.get(place)
        if recording is None:
            recording = self._record(imports, needs_grad, training, trains)
            if len(calls) < _MOST_CALLS:
                calls[place] = recording
        else:
            for spot, value in zip(recording.imports, imports, strict=True):
                spot.data.copy_(value)
            recording.tape.forward()
        self._recordings[key] = calls  # the newest is last
        while len(self._recordings) > _MOST_SIZES or self._are_too_many():
            del self._recordings[next(iter(self._recordings))]
        recording.runs += 1
        return recording

    def _are_too_many(self) -> bool:
        return len(self._recordings) > 1 and sum(map(len, self._recordings.values())) > _MOST_CALLS

    def finish(self, recording: _Recording, grads: Sequence[torch.Tensor | None]) -> list[torch.Tensor | None]:
        """Run the backward: set the gradients of parameters, and return those of `imports`."""
        own = self._parameter_grads
        overwritten = {tensor: grad.clone() for tensor, grad in own.items() if tensor.grad is grad}
        try:
            recording.tape.backward(grads, recording.exports, recording.imports)
        except BaseException:
            self._recordings.clear()  # its backward may be recorded in part
            raise
        for tensor in recording.tape.graded:
            earlier = overwritten.get(tensor, tensor.grad)
            tensor.grad = own[tensor] if earlier is None else own[tensor] + earlier
        return [spot.grad.clone() if any(spot.graded) else None for spot in recording.imports]

    def _record(
        self, imports: Sequence[torch.Tensor], needs_grad: Sequence[bool], training: bool, trains: bool
    ) -> _Recording:
        """Make a recording, which is also its first run."""
        tape = Tape(self._parameter_grads, trains)
        spots: dict[int, list[Spot]] = {}
        for index, value, needs in zip(self.imports, imports, needs_grad, strict=True):
            layout, rows = self._forms[index]
            spots[index] = [Spot(value.clone(), rows, layout, needs_grad=needs, fixed=True)]
        origins = [spots[index][0] for index in self.imports]
        for stretch in self._stretches:
            rows, cuts = self._forms[stretch.index][1], sorted(self._cuts[stretch.index])
            inputs = [tape.lay_out(_runs(spots, sources), layout, rows) for sources, layout in stretch.inputs]
            spots[stretch.index] = stretch.kernel.record(tape, inputs, training, cuts)
            self._settle(stretch.index, spots[stretch.index])
        ends = [tape.join(_runs(spots, sources)) for sources in self._exported]
        tape.end_forward()
        return _Recording(tape, origins, ends)

    def _settle(self, index: int, spots: Sequence[Spot]) -> None:
        """Let no value move that has several readers."""
        row = 0
        for spot in spots:
            spot.may_move &= all(self._reads[index, i] == 1 for i in range(row, row + spot.count))
            row += spot.count


def _runs(spots: Mapping[int, Sequence[Spot]], sources: Sequence[Source]) -> list[Spot]:
    """Return the spots that hold these rows."""
    found = []
    for index, start, stop in sources:
        at = 0
        for spot in spots[index]:
            first, last = max(start, at), min(stop, at + spot.count)
            if first < last:
                found.append(spot.rows(first - at, last - at))
            at += spot.count
    return found


class _Run(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, region: Region, how: tuple[bool, bool, int], anchor: Any, *imports: torch.Tensor) -> Any:
        ctx.set_materialize_grads(False)  # zeros in place of missing gradients would reach parameters that get none
        recording = region.start(imports, ctx.needs_input_grad[3:], *how)
        ctx.region, ctx.recording, ctx.run = region, recording, recording.runs
        return tuple(spot.data.clone() for spot in recording.exports)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[Any, ...]:
        if ctx.run != ctx.recording.runs:
            raise RuntimeError("the merged model has run again since, so these values are gone; run its backward first")
        return (None, None, None, *ctx.region.finish(ctx.recording, grads))
