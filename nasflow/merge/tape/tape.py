"""Part of a merged model as a fixed list of calls, forward and backward.

In every step, autograd creates nodes, allocates memory and looks up what to run, and gathering copies whole values. A
tape is recorded once for each batch size, during its first run; later steps only make the calls. Values of linear
layers stay in place, and activations write their results to where they are read.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch

from nasflow.merge.tape.tape_values import Spot, room_for
from nasflow.merge.values.layout import Layout, convert
from nasflow.native import as_programs


class Tape:
    """What to call, in order.

    Args:
        parameter_grads: the gradients of parameters, by parameter; shared by the tapes of a model.
        trains: whether there will be a backward.

    Attributes:
        graded: parameters with a gradient from the backward, once it is recorded.
    """

    def __init__(self, parameter_grads: dict[torch.Tensor, torch.Tensor], trains: bool):
        self.parameter_grads = parameter_grads
        self.trains = trains
        self.graded: set[torch.Tensor] = set()
        self._uses: Counter[torch.Tensor] = Counter()  # how many calls may contribute to a parameter's gradient
        self._forward: list[Callable[[], Any]] = []
        self._backward: list[Callable[[], Any]] | None = None
        self._program = self._forward
        self._to_record: list[tuple[list[Spot], Callable[[], None]]] = []

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Make a call, and append it to the current recording."""
        call = partial(function, *args, **kwargs) if args or kwargs else function
        call()
        self._program.append(call)

    def on_backward(
        self, outputs: Sequence[Spot], record: Callable[[], None], parameters: Sequence[torch.Tensor] = ()
    ) -> None:
        """Register `record`, which records the calls that use the gradients of `outputs`.

        Args:
            parameters: those with gradients to which these calls contribute.
        """
        self._uses.update(parameters)
        self._to_record.append((list(outputs), record))

    def on_backward_of_layer(
        self,
        y: Spot,
        x: Spot,
        parameters: Sequence[torch.Tensor | None],
        differentiate: Callable[[list[bool]], Sequence[Any]],
    ) -> None:
        """As `on_backward`, for a layer with one call that computes the gradients of its input and its parameters.

        Args:
            y: its output.
            x: its input.
            parameters: `[n, C, ...]`; None where it has none.
            differentiate: returns the gradients of `x` and of the parameters over the channels of all rows,
                `[n*C, ...]`, as far as they are wanted.
        """
        trained = {i: tensor for i, tensor in enumerate(parameters, 1) if tensor is not None and tensor.requires_grad}
        wanted = [x.needs_grad, *(place in trained for place in range(1, len(parameters) + 1))]
        found: list[torch.Tensor] = []

        def backward() -> None:
            adds = {place: not self._is_first(parameter) for place, parameter in trained.items()}

            def run() -> None:
                grads = differentiate(wanted)
                for place, parameter in trained.items():
                    own = grads[place].unflatten(0, parameter.shape[:2])
                    self._set_parameter_grad(parameter, own, adds[place])
                found[:] = [grads[0]]

            self.do(run)
            if x.needs_grad:
                self.contribute(x, lambda: found[0], fresh=True)
                self.do(found.clear)

        self.on_backward([y], backward, list(trained.values()))

    def write_parameter_grad(self, parameter: torch.Tensor, record: Callable[[torch.Tensor], None]) -> None:
        """Let `record` record calls that write a contribution to a parameter's gradient into the memory it is given.

        If an earlier call has contributed already, that memory is separate, and is added afterwards.
        """
        if parameter not in self.parameter_grads:
            self.parameter_grads[parameter] = torch.empty_like(parameter)
        memory = self.parameter_grads[parameter]
        if self._is_first(parameter):
            record(memory)
        else:
            contribution = torch.empty_like(memory)
            record(contribution)
            self.do(memory.add_, contribution)

    def contribute_to_parameter(self, parameter: torch.Tensor, grad: Callable[[], torch.Tensor]) -> None:
        """Record a contribution to a parameter's gradient."""
        adds = not self._is_first(parameter)
        self.do(lambda: self._set_parameter_grad(parameter, grad(), adds))

    def _is_first(self, parameter: torch.Tensor) -> bool:
        """Whether no call has contributed to the parameter's gradient in a backward; from now on one has."""
        first = parameter not in self.graded
        self.graded.add(parameter)
        return first

    def _set_parameter_grad(self, parameter: torch.Tensor, grad: torch.Tensor, adds: bool) -> None:
        if self._uses[parameter] < 2:
            self.parameter_grads[parameter] = grad
        elif adds:
            self.parameter_grads[parameter].add_(grad)
        elif parameter in self.parameter_grads:  # in place, because other calls refer to it
            self.parameter_grads[parameter].copy_(grad)
        else:
            self.parameter_grads[parameter] = torch.empty_like(parameter).copy_(grad)

    def join(self, spots: Sequence[Spot], fixed: bool = False) -> Spot:
        """Join runs of rows in one value, which is dense, and stays in place if `fixed`."""
        first = spots[0]
        if len(spots) == 1 and not first.is_part and (first.fixed or not fixed):
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
                    spot.claim(self)  # its gradient is in place
                elif spot.needs_grad:
                    self.contribute(spot, partial(run_of_grad, i))

        self.on_backward([joined], backward)
        return joined

    def lay_out(self, spots: Sequence[Spot], layout: Layout, rows: int) -> list[Spot]:
        """Return the same rows in another layout; if LIST is wanted, all in the layout of the first."""
        wanted = spots[0].layout if layout is Layout.LIST else layout
        return [spot if spot.layout is wanted else self._convert(spot, wanted, rows) for spot in spots]

    def _convert(self, spot: Spot, layout: Layout, rows: int) -> Spot:
        rows = rows if spot.layout is Layout.SHARED else spot.count
        converted = Spot(spot.data, rows, layout, needs_grad=spot.needs_grad)

        def forward() -> None:
            converted.data = convert(spot.data, rows, spot.layout, layout)

        def backward() -> None:  # not called for shared rows, which have no gradient
            self.contribute(spot, lambda: convert(converted.grad, rows, layout, spot.layout))

        self.do(forward)
        self.on_backward([converted], backward)
        return converted

    def contribute(self, spot: Spot, grad: Callable[[], torch.Tensor], fresh: bool = False) -> None:
        """Record a contribution to a spot's gradient; a `fresh` tensor is used by nothing else."""
        first = spot.claim(self)
        if first and fresh and spot.takes:
            self.do(lambda: spot.take(grad()))
        elif first:
            self.do(lambda: spot.grad.copy_(grad()))
        else:
            self.do(lambda: spot.grad.add_(grad()))

    def end_forward(self) -> None:
        """End the recording of the forward."""
        self._forward = as_programs(self._forward)

    def forward(self) -> None:
        """Make the calls of the forward."""
        for call in self._forward:
            call()

    def backward(self, grads: Sequence[torch.Tensor | None], ends: Sequence[Spot], origins: Sequence[Spot]) -> None:
        """Make the calls of the backward; the first time, record them.

        Args:
            grads: of `ends`; None if nothing depends on the value.
            ends: values that are read elsewhere too; always the same, as are `origins`.
            origins: values that come from elsewhere; their gradients are computed if they need any.

        Raises:
            RuntimeError: an end has a gradient, but had none when the calls were recorded.
        """
        for end, grad in zip(ends, grads, strict=True):
            if grad is None:
                if end.needs_grad and self._backward is not None and any(end.graded):
                    end.grad.zero_()
            elif end.needs_grad:
                if self._backward is not None and not any(end.graded):
                    raise RuntimeError("a value has a gradient now, but had none when the tape was recorded")
                end.grad.copy_(grad)
        if self._backward is None:
            self._backward = self._program = []
            self._record_backward([end for end, grad in zip(ends, grads, strict=True) if grad is not None], origins)
            self._backward = as_programs(self._backward)
            return
        for call in self._backward:
            call()

    def _record_backward(self, ends: Sequence[Spot], origins: Sequence[Spot]) -> None:
        for end in ends:
            end.claim(self)
        for outputs, record in reversed(self._to_record):
            if any(output.needs_grad and any(output.graded) for output in outputs):  # else no gradient arrives here
                for output in outputs:
                    output.complete(self)
                record()
                for spot in [spot for output in outputs for spot in output.done()]:
                    self.do(spot.let_go)
        for origin in origins:
            if origin.needs_grad and any(origin.graded):
                origin.complete(self)


def _copy(spot: Spot, place: torch.Tensor) -> None:
    place.copy_(spot.data)


def _runs(whole: Spot, spots: Sequence[Spot], tensor: torch.Tensor) -> list[torch.Tensor]:
    """Split a tensor with the layout of `whole` into runs with as many rows as the spots have."""
    runs, start = [], 0
    for spot in spots:
        runs.append(whole.of(tensor, start, start + spot.count))
        start += spot.count
    return runs


@runtime_checkable
class Tapeable(Protocol):
    """A kernel that can record itself on a tape, at least in some cases."""

    @property
    def is_tapeable(self) -> bool:
        """Whether this one can."""

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """Record the forward, and how to record the backward; return the output as one or several runs of rows.

        Args:
            inputs: for each, the runs of rows that make it up, in the layout that the kernel asks for.
            cuts: rows, from 0 to their number, at which the output may be divided into runs, and nowhere else.
        """
