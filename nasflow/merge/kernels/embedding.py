"""Embeddings."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nasflow.merge.kernels.base import Kernel
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.signature import is_hooked
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench


class BatchedEmbedding(Kernel):
    """All members' tables in one, with each member's indices shifted to its own table."""

    label = "embedding"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        layers: list[Any] = [node.module for node in nodes]
        weight = bench.lay([layer.weight for layer in layers])
        assert weight is not None  # noqa: S101 - an Embedding has one
        self._weight_NVE = weight
        self._first_N = torch.arange(self.rows, device=weight.device) * weight.shape[1]
        self._padding = layers[0].padding_idx

    @classmethod
    def fits(cls, node: Node) -> bool:
        layer = node.module
        if type(layer) is not nn.Embedding or is_hooked(layer):
            return False
        return layer.max_norm is None and not (layer.scale_grad_by_freq or layer.sparse)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.STACK], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        index, size = inputs[0], self._weight_NVE.shape[1]
        shifted = index + self._first_N.view(-1, *[1] * (index.ndim - 1))
        if index.stride(0):  # or an index beyond a member's table would be one in the next member's
            shifted = torch.where((index >= 0) & (index < size), shifted, self.rows * size)
        try:
            y = F.embedding(shifted, self._weight_NVE.flatten(0, 1))
        except IndexError:
            raise IndexError("an index of an embedding is out of range") from None
        return y if self._padding is None else torch.where((index == self._padding).unsqueeze(-1), y.detach(), y)
