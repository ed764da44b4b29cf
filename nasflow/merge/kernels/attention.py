"""Multi-head self-attention."""

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


class BatchedAttention(Kernel):
    """`nn.MultiheadAttention(x, x, x, need_weights=False)`, batch first, without masks or dropout."""

    label = "self-attention"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        layers: list[Any] = [node.module for node in nodes]
        self._heads = layers[0].num_heads
        self._in = (bench.lay([m.in_proj_weight for m in layers]), bench.lay([m.in_proj_bias for m in layers]))
        out = [layer.out_proj for layer in layers]
        self._out = (bench.lay([m.weight for m in out]), bench.lay([m.bias for m in out]))

    @classmethod
    def fits(cls, node: Node) -> bool:
        layer = node.module
        if type(layer) is not nn.MultiheadAttention or is_hooked(layer) or is_hooked(layer.out_proj):
            return False
        plain = layer.batch_first and layer.dropout == 0 and layer._qkv_same_embed_dim
        plain = plain and layer.bias_k is None and not layer.add_zero_attn
        itself = len(node.args) == 3 and node.args[0] is node.args[1] is node.args[2]
        return plain and itself and node.kwargs == {"need_weights": False} and len(node.args[0].spec.shape) == 3

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.STACK] * 3, Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> tuple[torch.Tensor, None]:
        x_NBLE = inputs[0]
        members, batch, length, width = x_NBLE.shape
        qkv = _project(x_NBLE, *self._in).reshape(members * batch, length, 3, self._heads, -1)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(query, key, value)
        joined = mixed.transpose(1, 2).reshape(members, batch, length, width)
        return _project(joined, *self._out), None


def _project(x_NBLE: torch.Tensor, weight_NOE: torch.Tensor | None, bias_NO: torch.Tensor | None) -> torch.Tensor:
    assert weight_NOE is not None  # noqa: S101 - a projection has one
    flat = x_NBLE.flatten(1, 2)
    weight = weight_NOE.transpose(1, 2)
    y = torch.bmm(flat, weight) if bias_NO is None else torch.baddbmm(bias_NO.unsqueeze(1), flat, weight)
    apart: torch.Tensor = y.unflatten(1, x_NBLE.shape[1:3])
    return apart
