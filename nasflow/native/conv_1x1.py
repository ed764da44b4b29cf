"""1x1 convolutions of several members: one product per member, in half the time of torch's."""

from collections.abc import Sequence

import torch
from torch import Tensor

from nasflow.native.channel_matrix import line_of, lines_in
from nasflow.native.program import Moving, fits, products, sums
from nasflow.native.structs import DEEPEST


class OneByOne:
    """1x1 convolutions of images channels last, `[B, R*C, H, W]` to `[B, R*O, H, W]`, at any address.

    Args:
        weight: `[R, O, C, 1, 1]`; must keep its address.
        bias: `[R, O]`; must keep its address, too.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None):
        self._weight = weight[..., 0, 0]
        self._bias = None if bias is None else bias.unsqueeze(1)
        self._weight_grad = torch.empty_like(weight)
        self._forms: dict[tuple[object, ...], Moving | None] = {}

    def forward(self, x: Tensor, out: Tensor) -> bool:
        """Write to `out`; return False, with nothing done, if no kernel fits."""
        form = self._form("forward", x, self._weight, out)
        if form is not None:
            form(x, self._weight, out)
        return form is not None

    def backward(self, grad: Tensor, x: Tensor, wanted: Sequence[bool]) -> list[Tensor | None] | None:
        """Return the wanted gradients of `x`, weight `[R*O, C, 1, 1]` and bias `[R*O]`; None if no kernel fits."""
        x_grad = torch.empty_like(x)
        to_x = self._form("backward", grad, self._weight, x_grad)
        own = self._weight_grad[..., 0, 0]
        to_weight = self._form("weight", grad, x, own)
        if to_x is None or to_weight is None:
            return None
        found: list[Tensor | None] = [None, None, None]
        if wanted[0]:
            to_x(grad, self._weight, x_grad)
            found[0] = x_grad
        if wanted[1]:
            to_weight(grad, x, own)
            found[1] = self._weight_grad.flatten(0, 1)
        if wanted[2]:
            found[2] = self._sums(grad)
        return found

    def _sums(self, grad: Tensor) -> Tensor:
        """Sum over the lines: unlike with torch, the bits of a sum depend on its own values alone."""
        found = grad.new_empty(len(self._weight), self._weight.shape[1])
        operation = sums(_by_row(grad, len(found)), found)
        assert operation is not None  # noqa: S101 - products of the same tensor fit
        operation()
        return found.flatten()

    def _form(self, what: str, x: Tensor, y: Tensor, out: Tensor) -> Moving | None:
        key = (what, x.dtype, y.dtype, x.shape, x.stride(), y.stride(), out.stride())
        if key not in self._forms:
            self._forms[key] = self._make(what, x, y, out)
        return self._forms[key]

    def _make(self, what: str, x: Tensor, y: Tensor, out: Tensor) -> Moving | None:
        images = [tensor for tensor in (x, y, out) if tensor.ndim == 4]
        if not fits(x, y, out) or any(line_of(tensor) is None for tensor in images):
            return None
        rows = len(self._weight)
        if what == "forward":
            made = [products(_by_row(x, rows), y.mT, _by_row(out, rows), self._bias)]
        elif what == "backward":
            made = [products(_by_row(x, rows), y, _by_row(out, rows))]
        else:
            parts = zip(_by_row(x, rows).split(DEEPEST, 1), _by_row(y, rows).split(DEEPEST, 1), strict=True)
            made = [products(own.mT, other, out, adds=number > 0) for number, (own, other) in enumerate(parts)]
        operations = [operation for operation in made if operation is not None]
        return Moving(operations, x, y, out) if len(operations) == len(made) else None


def _by_row(images: Tensor, rows: int) -> Tensor:
    """View images as `[R, lines, channels]`, a row for each member."""
    line, channels = line_of(images), images.shape[1] // rows
    assert line is not None  # noqa: S101 - `_make` checks it
    return images.as_strided((rows, lines_in(images), channels), (channels, line, 1))
