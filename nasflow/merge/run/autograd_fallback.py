"""Puts kernels that can't record themselves on a tape: autograd runs for one kernel at a time."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.tape.tape import Tape
from nasflow.merge.tape.tape_values import Spot
from nasflow.merge.values.layout import Layout, convert


class Nested:
    """Puts any kernel on a tape.

    Args:
        kernel: its output is a tensor, or a list of them.
        wanted: the layouts that it needs for its inputs.
        gives: the layout of its output.
        parameters: what it trains.
    """

    is_tapeable = True

    def __init__(self, kernel: Kernel, wanted: Sequence[Layout], gives: Layout, parameters: Sequence[torch.Tensor]):
        self._kernel, self._wanted, self._gives = kernel, wanted, gives
        self._parameters = list(dict.fromkeys(parameters))

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """See `Tapeable`."""
        read = [tape.join(spots) for spots in inputs]
        needs_grad = tape.trains and bool(self._parameters or any(spot.needs_grad for spot in read))
        leaves: list[torch.Tensor] = []
        given: list[torch.Tensor] = []
        outputs: list[Spot] = []

        def forward() -> None:
            leaves[:] = [spot.data.detach().requires_grad_(needs_grad and spot.needs_grad) for spot in read]
            with torch.set_grad_enabled(needs_grad):
                given[:] = self._run(read, leaves, training)
            if not outputs:
                outputs.extend(self._spot(value) for value in given)
            for spot, value in zip(outputs, given, strict=True):
                spot.data = self._laid_out(value.detach())

        def backward() -> None:
            inside = [i for i, leaf in enumerate(leaves) if leaf.requires_grad]
            found: list[Any] = []

            def differentiate() -> None:
                ends = [(value, spot) for value, spot in zip(given, outputs, strict=True) if value.requires_grad]
                sources = [*(leaves[i] for i in inside), *self._parameters]
                grads = [spot.grad.view(value.shape) for value, spot in ends]
                found[:] = torch.autograd.grad([value for value, _ in ends], sources, grads, allow_unused=True)
                leaves.clear()
                given.clear()

            tape.do(differentiate)
            for place, parameter in enumerate(self._parameters, len(inside)):
                if found[place] is not None:
                    tape.contribute_to_parameter(parameter, partial(found.__getitem__, place))
            for place, i in enumerate(inside):
                if found[place] is not None:
                    fresh = len(inside) == 1 and _is_own(found[place], read[i].data, [spot.grad for spot in outputs])
                    tape.contribute(read[i], partial(found.__getitem__, place), fresh)
            tape.do(found.clear)

        tape.do(forward)
        if needs_grad:
            tape.on_backward(outputs, backward, self._parameters)
        return outputs

    def _run(self, read: Sequence[Spot], leaves: Sequence[torch.Tensor], training: bool) -> list[torch.Tensor]:
        rows = self._kernel.rows
        layouts = zip(read, leaves, self._wanted, strict=True)
        value = self._kernel([convert(leaf, rows, spot.layout, to) for spot, leaf, to in layouts], training)
        return value if isinstance(value, list) else [value]

    def _spot(self, value: torch.Tensor) -> Spot:
        """Return the spot of an output; each row of a list is a value of one row."""
        if self._gives is not Layout.LIST:
            return Spot(value, self._kernel.rows, self._gives, needs_grad=value.requires_grad)
        layout = Layout.CHANNELS if value.ndim == 4 else Layout.STACK
        return Spot(value, 1, layout, needs_grad=value.requires_grad)

    def _laid_out(self, value: torch.Tensor) -> torch.Tensor:
        return value if self._gives is not Layout.LIST or value.ndim == 4 else value.unsqueeze(0)


def _is_own(grad: torch.Tensor, like: torch.Tensor, others: Sequence[torch.Tensor]) -> bool:
    """Whether a gradient has its value's strides, and memory that none of the others uses."""
    memory = grad.untyped_storage().data_ptr()
    return grad.stride() == like.stride() and all(memory != other.untyped_storage().data_ptr() for other in others)
