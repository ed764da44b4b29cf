"""A stretch of a merged model as a straight line of calls, forward and backward.

Autograd makes a node, allocates and looks up what to run in every step anew, and gathers values whole. A tape is
recorded once for a size of batch, while it runs for the first time; a step then only makes the calls. Values of linear
layers stay in their places, and activations write their results to where they are read.
"""

import itertools
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from nasflow.merge.layout import Layout, convert
from nasflow.native.program import as_programs


class Spot:
    """A value of several rows, in layout STACK or CHANNELS, or one that all rows read, in layout SHARED.

    Args:
        data: the value; calls of the forward may put another tensor in its place, unless it is `still`.
        rows: how many.
        needs_grad: whether gradients go through it.
        still: the value stays where it is.
        fixed: the gradient does so too, and calls can be recorded with both.
        grad_in: the spot whose gradient's memory its own takes.

    Attributes:
        graded: by row, whether the gradient has got a contribution, as far as the backward is recorded.
        may_move: whether the value may be told to lie elsewhere from now on, for whoever writes it looks each time,
            and one value only is made of it.
    """

    def __init__(
        self,
        data: torch.Tensor,
        rows: int,
        layout: Layout,
        *,
        needs_grad: bool = True,
        still: bool = False,
        fixed: bool = False,
        grad_in: "Spot | None" = None,
    ):
        self.data = data
        self.count = rows
        self.layout = layout
        self.needs_grad = needs_grad
        self.still = still or fixed
        self.fixed = fixed
        self.graded = [False] * rows
        self.may_move = False
        self._grad_in = grad_in
        self._grad: torch.Tensor | None = None
        self._parts = 0  # spots that lie in this one and whose backward is not recorded yet

    @property
    def grad(self) -> torch.Tensor:
        """The gradient, or memory for it, laid out as the value is."""
        if self._grad_in is not None:
            return self._grad_in.grad
        if self._grad is None:
            self._grad = torch.empty_like(self.data)
        return self._grad

    @property
    def takes(self) -> bool:
        """Whether another tensor can be its gradient."""
        return not self.fixed and self._grad_in is None

    def move(self, whole: "Spot", start: int, place: torch.Tensor) -> None:
        """Lie in `place`, the rows of `whole` from `start` on, and have the gradient there too."""
        self.data = place.copy_(self.data)
        self._grad_in = whole.rows(start, start + self.count)
        whole._parts += 1

    def take(self, grad: torch.Tensor) -> None:
        """Have a tensor as the gradient, from here to the end of this run."""
        self._grad = grad

    def rows(self, start: int, stop: int) -> "Spot":
        """Some of its rows."""
        return self if stop - start == self.count else _Rows(self, start, stop)

    def of(self, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Rows of a tensor that is laid out as this is."""
        if stop - start == self.count:
            return tensor
        if self.layout is Layout.CHANNELS:
            channels = tensor.shape[1] // self.count
            return tensor.narrow(1, start * channels, (stop - start) * channels)
        return tensor.narrow(0, start, stop - start)

    def write(self, activation: str, start: int, stop: int, out: torch.Tensor) -> bool:
        """Write an activation of some rows to `out`, if the values themselves have yet to be written down."""
        return False

    def claim(self, tape: "Tape") -> bool:
        """Whether a contribution to the gradient may overwrite what is there; else it has to be added to it."""
        return _claim(self, tape, 0, self.count)

    def complete(self, tape: "Tape") -> None:
        """No further contribution comes: rows that nobody read have a gradient of zero."""
        if not all(self.graded):
            if not any(self.graded):
                self.graded[0] = True
                tape.do(_zero, self, 0)
            _claim(self, tape, 0, self.count)

    def done(self) -> "list[Spot]":
        """Those that can let go when what uses this one's gradient has been recorded."""
        if self._grad_in is None or self.fixed:
            return [] if self.fixed or self._parts else [self]
        return self._grad_in.part_done()

    def part_done(self) -> "list[Spot]":
        """`done`, when a part of this one is."""
        self._parts -= 1
        return [] if self._parts else [self]

    def let_go(self) -> None:
        """The tensors are no longer needed, till the next run."""
        if not self.fixed:
            self._grad = None


class _Rows(Spot):
    """Rows `start` to `stop` of a spot."""

    def __init__(self, whole: Spot, start: int, stop: int):
        self._whole, self._start, self._stop = whole, start, stop
        self.count = stop - start
        self.layout, self.needs_grad = whole.layout, whole.needs_grad
        self.still, self.fixed = whole.still, whole.fixed
        self.may_move = False

    @property
    def data(self) -> torch.Tensor:  # type: ignore[override]
        return self._whole.of(self._whole.data, self._start, self._stop)

    @property
    def grad(self) -> torch.Tensor:
        return self._whole.of(self._whole.grad, self._start, self._stop)

    @property
    def takes(self) -> bool:
        return False

    def part_done(self) -> list[Spot]:
        return self._whole.part_done()

    def rows(self, start: int, stop: int) -> Spot:
        return self._whole.rows(self._start + start, self._start + stop)

    def write(self, activation: str, start: int, stop: int, out: torch.Tensor) -> bool:
        return self._whole.write(activation, self._start + start, self._start + stop, out)

    def claim(self, tape: "Tape") -> bool:
        return _claim(self._whole, tape, self._start, self._stop)


def _claim(spot: Spot, tape: "Tape", start: int, stop: int) -> bool:
    was = spot.graded[start:stop]
    spot.graded[start:stop] = [True] * len(was)
    if not any(was):
        return True
    for row, graded in enumerate(was, start):
        if not graded:
            tape.do(_zero, spot, row)
    return False


class Tape:
    """What to call, in order.

    Args:
        parameter_grads: the gradients of parameters, by parameter; shared by the tapes of a model.
        trains: whether there will be a backward.
    """

    def __init__(self, parameter_grads: dict[torch.Tensor, torch.Tensor], trains: bool):
        self.parameter_grads = parameter_grads
        self.trains = trains
        self._forward: list[Callable[[], Any]] = []
        self._backward: list[Callable[[], Any]] | None = None
        self._program = self._forward
        self._to_record: list[tuple[list[Spot], Callable[[], None]]] = []

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Make a call, and put it at the end of what is recorded now."""
        call = partial(function, *args, **kwargs) if args or kwargs else function
        call()
        self._program.append(call)

    def on_backward(self, outputs: Sequence[Spot], record: Callable[[], None]) -> None:
        """Let `record` put the calls on the tape that use the gradients of `outputs`."""
        self._to_record.append((list(outputs), record))

    def on_backward_of_layer(
        self,
        y: Spot,
        x: Spot,
        parameters: Sequence[torch.Tensor | None],
        differentiate: Callable[[list[bool]], Sequence[Any]],
    ) -> None:
        """As `on_backward`, for a layer of which one call gives the gradients of its input and its parameters.

        Args:
            y: its output.
            x: its input.
            parameters: `[n, C, ...]`; None where it has none.
            differentiate: gives the gradients of `x` and of the parameters over the channels of all rows, `[n*C, ...]`,
                those that are wanted.
        """
        wanted = [x.needs_grad, *(tensor is not None and tensor.requires_grad for tensor in parameters)]
        found: list[torch.Tensor] = []

        def run() -> None:
            grad, *own = differentiate(wanted)
            for parameter, grad_of, is_wanted in zip(parameters, own, wanted[1:], strict=True):
                if parameter is not None and is_wanted:
                    self.parameter_grads[parameter] = grad_of.unflatten(0, parameter.shape[:2])
            found[:] = [grad]

        def backward() -> None:
            self.do(run)
            if x.needs_grad:
                self.contribute(x, lambda: found[0], fresh=True)
                self.do(found.clear)

        self.on_backward([y], backward)

    def parameter_grad(self, parameter: torch.Tensor) -> torch.Tensor:
        """Memory for the gradient of a parameter, to which one call only may contribute."""
        if parameter not in self.parameter_grads:
            self.parameter_grads[parameter] = torch.empty_like(parameter)
        return self.parameter_grads[parameter]

    def join(self, spots: Sequence[Spot], fixed: bool = False) -> Spot:
        """Several runs of rows in one value; dense, and in its place if `fixed`."""
        first = spots[0]
        if len(spots) == 1 and not isinstance(first, _Rows) and (first.fixed or not fixed):
            return first
        if len(spots) == 1 and first.fixed and first.layout is Layout.STACK:
            return first
        count = sum(spot.count for spot in spots)
        data = room_for(first, count)
        joined = Spot(data, count, first.layout, needs_grad=any(spot.needs_grad for spot in spots), fixed=fixed)
        stops = list(itertools.accumulate(spot.count for spot in spots))
        moved = [spot.may_move and not fixed for spot in spots]
        for spot, place, moves, stop in zip(spots, _runs(joined, spots, data), moved, stops, strict=True):
            if moves:
                spot.move(joined, stop - spot.count, place)
            else:
                self.do(_copy, spot, place)

        def run_of_grad(i: int) -> torch.Tensor:
            return joined.of(joined.grad, stops[i] - spots[i].count, stops[i])

        def backward() -> None:
            for i, spot in enumerate(spots):
                if moved[i]:
                    spot.claim(self)  # it is there
                elif spot.needs_grad:
                    self.contribute(spot, partial(run_of_grad, i))

        self.on_backward([joined], backward)
        return joined

    def lay_out(self, spots: Sequence[Spot], layout: Layout, rows: int) -> list[Spot]:
        """The same rows in another layout; in one of them, whichever, if LIST is wanted."""
        wanted = spots[0].layout if layout is Layout.LIST else layout
        return [spot if spot.layout is wanted else self._convert(spot, wanted, rows) for spot in spots]

    def _convert(self, spot: Spot, layout: Layout, rows: int) -> Spot:
        rows = rows if spot.layout is Layout.SHARED else spot.count
        converted = Spot(spot.data, rows, layout, needs_grad=spot.needs_grad)

        def forward() -> None:
            converted.data = convert(spot.data, rows, spot.layout, layout)

        def backward() -> None:  # rows that are shared have no gradient
            self.contribute(spot, lambda: convert(converted.grad, rows, layout, spot.layout))

        self.do(forward)
        self.on_backward([converted], backward)
        return converted

    def contribute(self, spot: Spot, grad: Callable[[], torch.Tensor], fresh: bool = False) -> None:
        """Let a tensor go into a spot's gradient; one that is `fresh` belongs to nobody else."""
        first = spot.claim(self)
        if first and fresh and spot.takes:
            self.do(lambda: spot.take(grad()))
        elif first:
            self.do(lambda: spot.grad.copy_(grad()))
        else:
            self.do(lambda: spot.grad.add_(grad()))

    def end_forward(self) -> None:
        """The forward is recorded."""
        self._forward = as_programs(self._forward)

    def forward(self) -> None:
        """Make the calls of the forward."""
        for call in self._forward:
            call()

    def backward(self, grads: Sequence[torch.Tensor], ends: Sequence[Spot], origins: Sequence[Spot]) -> None:
        """Make the calls of the backward; the first time, record them.

        Args:
            grads: of `ends`.
            ends: values that are read elsewhere too; always the same, as are `origins`.
            origins: values that come from elsewhere, whose gradients are wanted if they need any.
        """
        for end, grad in zip(ends, grads, strict=True):
            if end.needs_grad:
                end.grad.copy_(grad)
        if self._backward is None:
            self._backward = self._program = []
            self._record_backward(ends, origins)
            self._backward = as_programs(self._backward)
            return
        for call in self._backward:
            call()

    def _record_backward(self, ends: Sequence[Spot], origins: Sequence[Spot]) -> None:
        for end in ends:
            end.claim(self)
        for outputs, record in reversed(self._to_record):
            if any(output.needs_grad and any(output.graded) for output in outputs):  # else no gradient gets here
                for output in outputs:
                    output.complete(self)
                record()
                for spot in [spot for output in outputs for spot in output.done()]:
                    self.do(spot.let_go)
        for origin in origins:
            if origin.needs_grad and any(origin.graded):
                origin.complete(self)


def room_for(like: Spot, rows: int) -> torch.Tensor:
    """Dense memory for so many rows like those of a spot."""
    data, axis = like.data, int(like.layout is Layout.CHANNELS)
    shape = list(data.shape)
    shape[axis] = shape[axis] // like.count * rows
    images = torch.channels_last if axis and data.ndim == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=data.dtype, device=data.device, memory_format=images)


def _zero(spot: Spot, row: int) -> None:
    spot.of(spot.grad, row, row + 1).zero_()


def _copy(spot: Spot, place: torch.Tensor) -> None:
    place.copy_(spot.data)


def _runs(whole: Spot, spots: Sequence[Spot], tensor: torch.Tensor) -> list[torch.Tensor]:
    """A tensor that is laid out as `whole` is, in runs of as many rows as the spots have."""
    runs, start = [], 0
    for spot in spots:
        runs.append(whole.of(tensor, start, start + spot.count))
        start += spot.count
    return runs


@runtime_checkable
class Tapeable(Protocol):
    """A kernel that can put itself on a tape, at least in some cases."""

    @property
    def is_tapeable(self) -> bool:
        """Whether this one can."""

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """Record its forward, and how to record its backward; its output, as one or several runs of rows.

        Args:
            inputs: for each, the runs of rows that make it up, in the layout that the kernel asks for.
            cuts: where the rows of its output part ways, from 0 to their number; runs may end there and nowhere else.
        """
