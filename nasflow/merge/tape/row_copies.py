"""Functions from rows of one value to rows of another, on a tape: activations write to where they are read."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch

from nasflow.merge.tape.tape_values import Spot, room_for
from nasflow.merge.values.layout import Layout

Functions = tuple[Callable[..., Any], Callable[..., Any]]
"""`forward(x, out)`, and `backward(grad, x, y, out)`, which writes the gradient of `x` to `out`."""


def room_like(like: Spot, rows: int, needs_grad: bool) -> Spot:
    """Return a spot with memory for so many rows, in the layout and the row shape of another."""
    fixed = like.layout is not Layout.CHANNELS
    return Spot(room_for(like, rows), rows, like.layout, needs_grad=needs_grad, still=True, fixed=fixed)


@dataclass(frozen=True)
class Move:
    """A function from `rows` rows of `x`, starting at `x_start`, to as many of `y`."""

    name: str
    functions: Functions
    x: Spot
    x_start: int
    y: Spot
    y_start: int
    rows: int
    _seen: list[torch.Tensor] = field(default_factory=list)

    def forward(self) -> None:
        """Call the function."""
        if not self.x.write(self.name, self.x_start, self.x_start + self.rows, self._y_data):
            self.functions[0](self._x_data, self._y_data)

    @property
    def _x_data(self) -> torch.Tensor:
        return self._x_still if self.x.still else self._x(self.x.data)

    @cached_property
    def _x_still(self) -> torch.Tensor:
        return self._x(self.x.data)

    @property
    def _y_data(self) -> torch.Tensor:
        data = self.y.data
        if not self._seen or self._seen[0] is not data:  # `y` has moved
            self._seen[:] = [data, self._y(data)]
        return self._seen[1]

    def backward(self, adds: bool, by_output: bool) -> None:
        """Compute the gradient of `x` from that of `y`.

        Args:
            adds: whether it is added to the gradient that is there.
            by_output: whether the function's backward does not need its input, which may be gone.
        """
        grad, x = self._y(self.y.grad), None if by_output else self._x_data
        if by_output and not adds and self.x.takes and self.rows == self.x.count:
            self.functions[1](grad, x, self._y_data, grad)
            self.x.take(grad)
            return
        place = self._x(self.x.grad)
        out = torch.empty_like(place) if adds else place
        self.functions[1](grad, x, self._y_data, out)
        if adds:
            place.add_(out)

    def _x(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.x.of(tensor, self.x_start, self.x_start + self.rows)

    def _y(self, tensor: torch.Tensor) -> torch.Tensor:
        return self.y.of(tensor, self.y_start, self.y_start + self.rows)


def moves_between(
    segments: Mapping[str, Functions], names: Sequence[str], runs: Sequence[Spot], parts: Sequence[Spot]
) -> list[Move]:
    """Return the functions of the rows, given by name, split where they, the input's or the output's spots change."""
    sources = [(x, i) for x in runs for i in range(x.count)]
    targets = [(y, i) for y in parts for i in range(y.count)]
    moves: list[Move] = []
    for name, (x, i), (y, j) in zip(names, sources, targets, strict=True):
        if moves and moves[-1].name == name and moves[-1].x is x and moves[-1].y is y:
            moves[-1] = dataclasses.replace(moves[-1], rows=moves[-1].rows + 1, _seen=[])
        else:
            moves.append(Move(name, segments[name], x, i, y, j, 1))
    return moves
