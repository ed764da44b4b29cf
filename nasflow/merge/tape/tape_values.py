"""Values on a tape, and their gradients."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from nasflow.merge.values.layout import Layout


class Recorder(Protocol):
    """What calls are recorded with: a tape."""

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Make a call, and put it at the end of what is recorded now."""


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
        is_part: whether it is some rows of a larger one.
    """

    is_part = False

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

    def claim(self, tape: Recorder) -> bool:
        """Whether a contribution to the gradient may overwrite what is there; else it has to be added to it."""
        return _claim(self, tape, 0, self.count)

    def complete(self, tape: Recorder) -> None:
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

    is_part = True

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

    def claim(self, tape: Recorder) -> bool:
        return _claim(self._whole, tape, self._start, self._stop)


def _claim(spot: Spot, tape: Recorder, start: int, stop: int) -> bool:
    was = spot.graded[start:stop]
    spot.graded[start:stop] = [True] * len(was)
    if not any(was):
        return True
    for row, graded in enumerate(was, start):
        if not graded:
            tape.do(_zero, spot, row)
    return False


def room_for(like: Spot, rows: int) -> torch.Tensor:
    """Dense memory for so many rows like those of a spot."""
    data, axis = like.data, int(like.layout is Layout.CHANNELS)
    shape = list(data.shape)
    shape[axis] = shape[axis] // like.count * rows
    images = torch.channels_last if axis and data.ndim == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=data.dtype, device=data.device, memory_format=images)


def _zero(spot: Spot, row: int) -> None:
    spot.of(spot.grad, row, row + 1).zero_()
