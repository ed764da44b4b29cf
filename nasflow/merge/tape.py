"""A stretch of a merged model as a straight line of calls, forward and backward, on memory that stays in its place.

Autograd makes a node, allocates and looks up what to run in every step anew, which for small layers takes longer than
the arithmetic. A tape is recorded once for a size of batch; a step then only makes the calls.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Protocol, runtime_checkable

import torch


class Spot:
    """A value `[n, B, ...]` in its place.

    Args:
        data: the value.
        needs_grad: whether gradients go through it.
        grad_in: where its gradient is put; None for memory of its own.

    Attributes:
        graded: by row, whether the gradient has got a contribution, as far as the backward is recorded.
    """

    def __init__(self, data: torch.Tensor, needs_grad: bool = True, grad_in: "Spot | None" = None):
        self.data = data
        self.needs_grad = needs_grad
        self.graded = [False] * len(data)
        self._grad_in = grad_in
        self._grad: torch.Tensor | None = None

    @property
    def grad(self) -> torch.Tensor:
        """Memory for the gradient, laid out as the value is."""
        if self._grad_in is not None:
            return self._grad_in.grad
        if self._grad is None:
            self._grad = torch.empty_like(self.data)
        return self._grad

    def rows(self, start: int, stop: int) -> "Spot":
        """Some of its rows."""
        return self if stop - start == len(self.data) else _Rows(self, start, stop)

    def claim(self, tape: "Tape") -> bool:
        """Whether a contribution to the gradient may overwrite what is there; else it has to be added to it."""
        return _claim(self, tape, 0, len(self.data))

    def complete(self, tape: "Tape") -> None:
        """No further contribution comes: rows that nobody read have a gradient of zero."""
        if not all(self.graded) and any(self.graded):
            _claim(self, tape, 0, len(self.data))
        elif not any(self.graded):
            tape.do(self.grad.zero_)


class _Rows(Spot):
    """Rows `start` to `stop` of a spot."""

    def __init__(self, whole: Spot, start: int, stop: int):
        super().__init__(whole.data[start:stop], whole.needs_grad)
        self._whole, self._start, self._stop = whole, start, stop

    @property
    def grad(self) -> torch.Tensor:
        return self._whole.grad[self._start : self._stop]

    def rows(self, start: int, stop: int) -> Spot:
        return self._whole.rows(self._start + start, self._start + stop)

    def claim(self, tape: "Tape") -> bool:
        return _claim(self._whole, tape, self._start, self._stop)


def _claim(spot: Spot, tape: "Tape", start: int, stop: int) -> bool:
    was = spot.graded[start:stop]
    spot.graded[start:stop] = [True] * len(was)
    if not any(was):
        return True
    for row, graded in enumerate(was, start):
        if not graded:
            tape.do(spot.grad[row].zero_)
    return False


class Tape:
    """What to call, in order.

    Args:
        parameter_grads: where the gradients of parameters go, by parameter; shared by the tapes of a model.
    """

    def __init__(self, parameter_grads: dict[torch.Tensor, torch.Tensor]):
        self._parameter_grads = parameter_grads
        self._forward: list[Callable[[], Any]] = []
        self._backward: list[Callable[[], Any]] | None = None
        self._program = self._forward
        self._to_record: list[tuple[Spot, Callable[[], None]]] = []

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Put a call at the end of what is recorded now."""
        self._program.append(partial(function, *args, **kwargs))

    def on_backward(self, output: Spot, record: Callable[[], None]) -> None:
        """Let `record` put the calls on the tape that use the gradient of `output`."""
        self._to_record.append((output, record))

    def parameter_grad(self, parameter: torch.Tensor) -> torch.Tensor:
        """Memory for the gradient of a parameter, to which one call only may contribute."""
        if parameter not in self._parameter_grads:
            self._parameter_grads[parameter] = torch.empty_like(parameter)
        return self._parameter_grads[parameter]

    def join(self, spots: Sequence[Spot]) -> Spot:
        """Several values' rows in one."""
        if len(spots) == 1:
            return spots[0]
        joined = Spot(torch.cat([spot.data for spot in spots]), any(spot.needs_grad for spot in spots))
        self.do(torch.cat, [spot.data for spot in spots], out=joined.data)

        def backward() -> None:
            parts = joined.grad.split([len(spot.data) for spot in spots])
            for spot, part in zip(spots, parts, strict=True):
                if spot.needs_grad:
                    self.contribute(spot, part)

        self.on_backward(joined, backward)
        return joined

    def contribute(self, spot: Spot, grad: torch.Tensor) -> None:
        """Let a tensor's values go into a spot's gradient."""
        self.do(spot.grad.copy_ if spot.claim(self) else spot.grad.add_, grad)

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
        for call in self._backward:
            call()

    def _record_backward(self, ends: Sequence[Spot], origins: Sequence[Spot]) -> None:
        for end in ends:
            end.claim(self)
        for output, record in reversed(self._to_record):
            if output.needs_grad:
                output.complete(self)
                record()
        for origin in origins:
            if origin.needs_grad:
                origin.complete(self)


@runtime_checkable
class Tapeable(Protocol):
    """A kernel that can put itself on a tape, at least in some cases."""

    @property
    def is_tapeable(self) -> bool:
        """Whether this one can."""

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool) -> Spot:
        """Record its forward, and how to record its backward; its output.

        Args:
            inputs: for each, the runs of rows `[n, B, ...]` that make it up, in layout STACK; or one `[B, ...]` that
                all rows read, without gradient, where the kernel asks for layout SHARED.
        """
