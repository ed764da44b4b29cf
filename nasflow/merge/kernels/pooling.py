"""Pooling: without weights, members are only more channels, or more samples."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.tape.tape import Tape
from nasflow.merge.tape.tape_values import Spot
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import averages_windows, function_name
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.trace.signature import is_hooked
from nasflow.merge.values.layout import Layout

_LAYERS = (
    *(nn.MaxPool1d, nn.MaxPool2d, nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d),
    *(nn.AdaptiveMaxPool1d, nn.AdaptiveMaxPool2d, nn.ZeroPad2d, nn.Upsample),
)
_NAMES = frozenset(
    [
        "max_pool1d",
        "max_pool2d",
        "avg_pool1d",
        "avg_pool2d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "adaptive_max_pool1d",
        "adaptive_max_pool2d",
        "interpolate",
    ]
)


class BatchedPool(Kernel):
    """The same window over every channel of every member."""

    label = "pooling"

    @classmethod
    def fits(cls, node: Node) -> bool:
        if len(node.inputs) != 1 or not isinstance(node.spec, Spec) or not isinstance(node.inputs[0].spec, Spec):
            return False
        ndim = len(node.inputs[0].spec.shape)
        if node.module is not None:
            plain = type(node.module) in _LAYERS and not is_hooked(node.module)
            return plain and _has_channels(type(node.module).__name__, ndim)
        name = function_name(node)
        return name in _NAMES and node.args[:1] == node.inputs and _has_channels(name, ndim)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        layout = Layout.STACK if given[0] is Layout.STACK else Layout.CHANNELS
        return [layout], layout

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        x, node = inputs[0], self.nodes[0]
        stacked = x.ndim > len(node.inputs[0].spec.shape)
        if stacked:
            x = x.flatten(0, 1)
        if x.is_cuda and averages_windows(node):
            x = x.contiguous()
        pool: Any = node.module or node.target
        y: torch.Tensor = pool(x) if node.module is not None else pool(x, *node.args[1:], **node.kwargs)
        return y.unflatten(0, (self.rows, -1)) if stacked else y

    @property
    def is_tapeable(self) -> bool:
        """Whether it pools images."""
        return isinstance(self.nodes[0].module, nn.MaxPool2d | nn.AvgPool2d)

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """See `Tapeable`. Autograd would make the same calls, and a graph around them in every step."""
        layer: Any = self.nodes[0].module
        window = _Maximum(layer) if isinstance(layer, nn.MaxPool2d) else _Average(layer)
        x = tape.join(inputs[0])
        y = Spot(x.data, self.rows, x.layout, needs_grad=x.needs_grad)
        stacked = x.layout is Layout.STACK

        def images(value: torch.Tensor) -> torch.Tensor:
            return value.flatten(0, 1) if stacked else value

        def rows(value: torch.Tensor) -> torch.Tensor:
            return value.unflatten(0, (self.rows, -1)) if stacked else value

        tape.do(lambda: setattr(y, "data", rows(window.forward(images(x.data), tape.trains and y.needs_grad))))
        tape.on_backward(
            [y],
            lambda: tape.contribute(x, lambda: rows(window.backward(images(y.grad), images(x.data))), fresh=True),
        )
        return [y]


class _Maximum:
    """`nn.MaxPool2d` as a call for the forward and one for the backward."""

    def __init__(self, layer: nn.MaxPool2d):
        self._window = (layer.kernel_size, layer.stride, layer.padding, layer.dilation, layer.ceil_mode)
        self._places: list[torch.Tensor] = []  # positions of the maxima, from forward to backward

    def forward(self, x: torch.Tensor, needs_grad: bool) -> torch.Tensor:
        y: torch.Tensor
        y, places = torch.ops.aten.max_pool2d_with_indices(x, *self._window)
        self._places = [places] if needs_grad else []
        return y

    def backward(self, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        places = self._places.pop()
        back: torch.Tensor = torch.ops.aten.max_pool2d_with_indices_backward(grad, x, *self._window, places)
        return back


class _Average:
    """`nn.AvgPool2d` as a call for the forward and one for the backward.

    Images are contiguous on a GPU, where torch's backward is wrong for others (`averages_windows`).
    """

    def __init__(self, layer: nn.AvgPool2d):
        where = (layer.kernel_size, layer.stride, layer.padding)
        self._window = (*where, layer.ceil_mode, layer.count_include_pad, layer.divisor_override)

    def forward(self, x: torch.Tensor, needs_grad: bool) -> torch.Tensor:
        y: torch.Tensor = torch.ops.aten.avg_pool2d(_dense_on_gpu(x), *self._window)
        return y

    def backward(self, grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        back: torch.Tensor = torch.ops.aten.avg_pool2d_backward(_dense_on_gpu(grad), _dense_on_gpu(x), *self._window)
        return back


def _dense_on_gpu(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous() if x.is_cuda else x


def _has_channels(name: str, ndim: int) -> bool:
    """Whether the input has a batch and channels before the dimensions that are pooled."""
    return ndim == {"1d": 3, "2d": 4}.get(name[-2:], max(ndim, 3))
