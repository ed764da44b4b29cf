"""Pooling: no weights, so members are only more channels, or more samples."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.knowledge import function_name
from nasflow.merge.layout import Layout
from nasflow.merge.node import Node
from nasflow.merge.structure import is_hooked

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
        if len(node.inputs) != 1 or not isinstance(node.spec, type(node.inputs[0].spec)):
            return False
        has_channels = len(node.inputs[0].spec.shape) > 2
        if node.module is not None:
            plain = type(node.module) in _LAYERS and not is_hooked(node.module)
            return plain and has_channels and not getattr(node.module, "return_indices", False)
        return function_name(node) in _NAMES and has_channels and node.args[:1] == node.inputs

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        layout = Layout.STACK if given[0] is Layout.STACK else Layout.CHANNELS
        return [layout], layout

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        x, node = inputs[0], self.nodes[0]
        stacked = x.ndim > len(node.inputs[0].spec.shape)
        if stacked:
            x = x.flatten(0, 1)
        pool: Any = node.module or node.target
        y: torch.Tensor = pool(x) if node.module is not None else pool(x, *node.args[1:], **node.kwargs)
        return y.unflatten(0, (self.rows, -1)) if stacked else y
