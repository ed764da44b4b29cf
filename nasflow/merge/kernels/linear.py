"""Linear layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.layout import Layout
from nasflow.merge.node import Node
from nasflow.merge.stacks import Bench
from nasflow.merge.structure import is_hooked


class BatchedLinear(Kernel):
    """`baddbmm` over the members; a shared input is read by all without a copy."""

    label = "baddbmm"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        layers: list[Any] = [node.module for node in nodes]
        weight = bench.lay([layer.weight for layer in layers])
        assert weight is not None  # noqa: S101 - a Linear has one
        self.weight_NOI = weight
        self.bias_NO = bench.lay([layer.bias for layer in layers])

    @classmethod
    def fits(cls, node: Node) -> bool:
        return type(node.module) is nn.Linear and not is_hooked(node.module) and len(node.spec.shape) > 1

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.STACK], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        x = inputs[0]
        x_NBI = x if x.ndim == 3 else x.flatten(1, -2)
        weight_NIO = self.weight_NOI.transpose(1, 2)
        if self.bias_NO is None:
            y_NBO = torch.bmm(x_NBI, weight_NIO)
        else:
            y_NBO = torch.baddbmm(self.bias_NO.unsqueeze(1), x_NBI, weight_NIO)
        y: torch.Tensor = y_NBO if x.ndim == 3 else y_NBO.unflatten(1, x.shape[1:-1])
        return y


class DenseLinear(BatchedLinear):
    """One dense product for all members that read the same input: theirs are columns of one wide layer."""

    label = "dense"

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.SHARED], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        bias = None if self.bias_NO is None else self.bias_NO.flatten()
        wide = F.linear(inputs[0], self.weight_NOI.flatten(0, 1), bias)
        apart: torch.Tensor = wide.unflatten(-1, (self.rows, -1))
        return apart.movedim(-2, 0)
