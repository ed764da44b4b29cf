"""Convolutions."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.tape.tape import Tape
from nasflow.merge.tape.tape_values import Spot
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.signature import is_hooked
from nasflow.merge.values.layout import Layout, channels_last, dense_images
from nasflow.merge.values.parameter_stacks import Bench
from nasflow.native import OneByOne, fits

_CALLS: dict[type[nn.Module], Callable[..., torch.Tensor]] = {nn.Conv1d: F.conv1d, nn.Conv2d: F.conv2d}


class GroupedConvolution(Kernel):
    """A grouped convolution with each member's channels as a group (or several), images channels last."""

    label = "grouped convolution"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        layers: list[Any] = [node.module for node in nodes]
        weight = bench.lay([layer.weight for layer in layers], channels_last=True)
        assert weight is not None  # noqa: S101 - a convolution has one
        self._weight = weight
        self._bias = bench.lay([layer.bias for layer in layers])
        first = layers[0]
        self._convolve = _CALLS[type(first)]
        self._geometry = {"stride": first.stride, "padding": first.padding, "dilation": first.dilation}
        self._groups = self.rows * first.groups

    @classmethod
    def fits(cls, node: Node) -> bool:
        layer = node.module
        if not isinstance(layer, nn.Conv1d | nn.Conv2d) or type(layer) not in _CALLS or is_hooked(layer):
            return False
        return layer.padding_mode == "zeros" and _has_batch(node)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.CHANNELS], Layout.CHANNELS

    @property
    def is_tapeable(self) -> bool:
        """Whether it convolves images, with padding in numbers, on the CPU."""
        return self._weight.is_cpu and self._weight.ndim == 5 and not isinstance(self._geometry["padding"], str)

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """See `Tapeable`."""
        x = tape.join(inputs[0])
        parameters = [tensor for tensor in (self._weight, self._bias) if tensor is not None and tensor.requires_grad]
        weight = self._weight.detach().flatten(0, 1)
        bias = None if self._bias is None else self._bias.detach().flatten()
        y = Spot(weight, self.rows, Layout.CHANNELS, needs_grad=x.needs_grad or bool(parameters))
        products = self._products()
        if products is not None:
            room = torch.empty((len(x.data), len(weight), *x.data.shape[2:]), memory_format=torch.channels_last)

        def forward() -> None:
            images = channels_last(x.data)
            if products is not None and products.forward(images, room):
                y.data = room
            else:
                y.data = F.conv2d(images, weight, bias, groups=self._groups, **self._geometry)

        def differentiate(wanted: list[bool]) -> Sequence[torch.Tensor | None]:
            if products is not None and (found := products.backward(y.grad, channels_last(x.data), wanted)) is not None:
                return found
            geometry = [list(self._geometry[name]) for name in ("stride", "padding", "dilation")]
            sizes = None if bias is None else [len(bias)]
            given = (dense_images(y.grad), channels_last(x.data), weight, sizes, *geometry, False, [0, 0])
            grads: Sequence[torch.Tensor] = torch.ops.aten.convolution_backward(*given, self._groups, wanted)
            return grads

        tape.do(forward)
        tape.on_backward_of_layer(y, x, (self._weight, self._bias), differentiate)
        return [y]

    def _products(self) -> OneByOne | None:
        """Return what replaces torch's convolution if the window is a single pixel, else None."""
        weight, bias = self._weight.detach(), None if self._bias is None else self._bias.detach()
        in_one = self._groups in (1, self.rows)  # one group for all, or one for each
        moves = self._geometry["stride"] != (1, 1) or self._geometry["padding"] != (0, 0)
        if not in_one or moves or weight.shape[3:] != (1, 1) or not fits(weight):
            return None
        if self._groups == 1:
            weight, bias = weight.flatten(0, 1)[None], None if bias is None else bias.flatten()[None]
        return OneByOne(weight, bias)

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        bias = None if self._bias is None else self._bias.flatten()
        return self._convolve(
            channels_last(inputs[0]), self._weight.flatten(0, 1), bias, groups=self._groups, **self._geometry
        )


class DenseConvolution(GroupedConvolution):
    """One dense convolution for all members that read the same images: members are output channels of a wide one."""

    label = "dense convolution"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._groups = 1

    @classmethod
    def fits(cls, node: Node) -> bool:
        return super().fits(node) and bool(node.module.groups == 1)  # type: ignore[union-attr]

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.SHARED], Layout.CHANNELS


def _has_batch(node: Node) -> bool:
    layer = node.module
    return len(node.spec.shape) == (4 if isinstance(layer, nn.Conv2d) else 3)
