"""Values on a tape, and their gradients."""

from collections.abc import Callable
from typing import Any, Protocol

import torch

from nasflow.merge.values.layout import Layout


class Recorder(Protocol):
    """Records calls, as a tape does."""

    def do(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        """Make a call, and append it to the current recording."""


class Spot:
    """A value of several rows, in layout STACK or CHANNELS, or one that all rows read, in layout SHARED.

    Args:
        data: the value; calls of the forward may replace the tensor, unless it is `still`.
        rows: how many.
        needs_grad: whether gradients flow through it.
        still: the value stays in its memory.
        fixed: so does the gradient, and calls can be recorded with both.
        grad_in: the spot that provides the gradient's memory.

    Attributes:
        graded: for each row, whether its gradient has a contribution in the backward as recorded so far.
        may_move: whether the value may be stored elsewhere from now on, because calls that write it look up the place
            each time, and only one value is made from it.
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
        self._parts = 0  # spots inside this one with a backward that is not recorded yet

    @property
    def grad(self) -> torch.Tensor:
        """The gradient, or uninitialized memory for it, with the value's strides."""
        if self._grad_in is not None:
            return self._grad_in.grad
        if self._grad is None:
            self._grad = torch.empty_like(self.data)
        return self._grad

    @property
    def takes(self) -> bool:
        """Whether another tensor can become its gradient."""
        return not self.fixed and self._grad_in is None

    def move(self, whole: "Spot", start: int, place: torch.Tensor) -> None:
        """Store the value in `place`, the rows of `whole` from `start` on, and the gradient in its rows."""
        self.data = place.copy_(self.data)
        self._grad_in = whole.rows(start, start + self.count)
        whole._parts += 1

    def take(self, grad: torch.Tensor) -> None:
        """Use a tensor as the gradient until the end of this run."""
        self._grad = grad

    def rows(self, start: int, stop: int) -> "Spot":
        """Return some of its rows as a spot."""
        return self if stop - start == self.count else _Rows(self, start, stop)

    def of(self, tensor: torch.Tensor, start: int, stop: int) -> torch.Tensor:
        """Return rows of a tensor that has this spot's layout."""
        if stop - start == self.count:
            return tensor
        if self.layout is Layout.CHANNELS:
            channels = tensor.shape[1] // self.count
            return tensor.narrow(1, start * channels, (stop - start) * channels)
        return tensor.narrow(0, start, stop - start)

    def write(self, activation: str, start: int, stop: int, out: torch.Tensor) -> bool:
        """Write an activation of some rows to `out`, if the values are not stored yet; return whether it did."""
        return False

    def claim(self, tape: Recorder) -> bool:
        """Whether a contribution may overwrite the gradient, not be added. From now on, the rows are graded."""
        return _claim(self, tape, 0, self.count)

    def complete(self, tape: Recorder) -> None:
        """Set the gradient of rows that nothing read to zero, because no more contributions follow."""
        if not all(self.graded):
            if not any(self.graded):
                self.graded[0] = True
                tape.do(_zero, self, 0)
            _claim(self, tape, 0, self.count)

    def done(self) -> "list[Spot]":
        """Return the spots that can release memory when the use of this one's gradient has been recorded."""
        if self._grad_in is None or self.fixed:
            return [] if self.fixed or self._parts else [self]
        return self._grad_in.part_done()

    def part_done(self) -> "list[Spot]":
        """`done`, called when a part of this one is."""
        self._parts -= 1
        return [] if self._parts else [self]

    def let_go(self) -> None:
        """Release memory that is not needed until the next run."""
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
    """Return dense memory for `rows` rows like those of a spot."""
    data, axis = like.data, int(like.layout is Layout.CHANNELS)
    shape = list(data.shape)
    shape[axis] = shape[axis] // like.count * rows
    images = torch.channels_last if axis and data.ndim == 4 else torch.contiguous_format
    return torch.empty(shape, dtype=data.dtype, device=data.device, memory_format=images)


def _zero(spot: Spot, row: int) -> None:
    spot.of(spot.grad, row, row + 1).zero_()
