"""Normalization layers."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from nasflow import native
from nasflow.merge.kernels.base import Kernel
from nasflow.merge.tape.tape import Tape
from nasflow.merge.tape.tape_values import Spot
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.signature import is_hooked
from nasflow.merge.values.layout import Layout
from nasflow.merge.values.parameter_stacks import Bench

_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


class _Norm(Kernel):
    """Base of the kernels: each member's own scale and shift."""

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        layer: Any = nodes[0].module
        self._layer, self._eps = layer, layer.eps
        self._weight, self._bias = self._lay("weight"), self._lay("bias")

    def _lay(self, name: str) -> torch.Tensor | None:
        return self.bench.lay([getattr(node.module, name) for node in self.nodes])


class BatchedBatchNorm(_Norm):
    """Batch norm over the channels of all members at once; each keeps its own running statistics."""

    label = "batch norm over channels"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._mean, self._variance = self._lay("running_mean"), self._lay("running_var")
        self._count = self._lay("num_batches_tracked")
        self._momentum = self._layer.momentum
        self._frozen = not self._layer.training

    @classmethod
    def fits(cls, node: Node) -> bool:
        layer = node.module
        if (
            not isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)
            or type(layer) not in _BATCH_NORMS
            or is_hooked(layer)
        ):
            return False
        return layer.momentum is not None and len(node.spec.shape) > 1

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.CHANNELS], Layout.CHANNELS

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        training = training and not self._frozen
        mean, variance, weight, bias = self._flat()
        if training and self._count is not None:
            self._count.add_(1)
        by_batch = training or self._mean is None
        return F.batch_norm(inputs[0], mean, variance, weight, bias, by_batch, self._momentum, self._eps)

    @property
    def is_tapeable(self) -> bool:
        """Whether it has weights and biases, on the CPU."""
        return self._weight is not None and self._bias is not None and self._weight.is_cpu

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """See `Tapeable`."""
        x = tape.join(inputs[0])
        training = training and not self._frozen
        by_batch = training or self._mean is None
        if by_batch and x.data.numel() == x.data.shape[1]:
            self([x.data], training)  # torch raises an error, because one number has no variance
        mean, variance, weight, bias = (None if tensor is None else tensor.detach() for tensor in self._flat())
        assert weight is not None and bias is not None  # noqa: S101 - `is_tapeable` said so
        parameters = [tensor for tensor in (self._weight, self._bias) if tensor is not None and tensor.requires_grad]
        needs_grad = x.needs_grad or bool(parameters)
        statistics = native.Statistics(x.data.new_empty(x.data.shape[1]), x.data.new_empty(x.data.shape[1]))
        running = None if mean is None or variance is None else (mean, variance)
        rates = (self._momentum, self._eps)
        y = _Normalized(x, self.rows, (*statistics, weight, bias), needs_grad)

        def forward() -> None:
            if training and self._count is not None:
                self._count.add_(1)
            if by_batch:
                y.is_due = native.batch_statistics(x.data, running, rates, statistics)
            elif running is not None:
                y.is_due = native.kept_statistics(x.data, running, self._eps, statistics)
            if not y.is_due:
                given = (x.data, weight, bias, mean, variance, by_batch, *rates)
                torch.native_batch_norm(*given, out=(y.data, *statistics))

        def differentiate(wanted: list[bool]) -> Sequence[torch.Tensor]:
            if by_batch and (found := native.batch_norm_backward(y.grad, x.data, weight, statistics)) is not None:
                return found
            given = (y.grad, x.data, weight, mean, variance, *statistics, by_batch, self._eps)
            grads: Sequence[torch.Tensor] = torch.ops.aten.native_batch_norm_backward(*given, wanted)
            return grads

        tape.do(forward)
        tape.on_backward_of_layer(y, x, (self._weight, self._bias), differentiate)
        return [y]

    def _flat(self) -> list[torch.Tensor | None]:
        """Mean, variance, weight and bias over the channels of all members."""
        tensors = (self._mean, self._variance, self._weight, self._bias)
        return [None if tensor is None else tensor.flatten() for tensor in tensors]


class _Normalized(Spot):
    """The output of batch norm for `x`; it is not stored as long as only activations read it.

    Args:
        of_channels: means, scales, weights and biases.

    Attributes:
        is_due: whether the values are not stored yet.
    """

    def __init__(self, x: Spot, rows: int, of_channels: Sequence[Any], needs_grad: bool):
        self.is_due = False
        self._x, self._of_channels = x, of_channels
        super().__init__(torch.empty_like(x.data), rows, Layout.CHANNELS, needs_grad=needs_grad)

    @property
    def data(self) -> torch.Tensor:
        """The values, stored when first read."""
        if self.is_due:
            if not self.write(None, 0, self.count, self._values):
                raise RuntimeError("the output of a batch norm can't be stored")
            self.is_due = False
        return self._values

    @data.setter
    def data(self, values: torch.Tensor) -> None:
        self._values = values

    def write(self, activation: str | None, start: int, stop: int, out: torch.Tensor) -> bool:
        """See `Spot`."""
        size = self._values.shape[1] // self.count
        channels = (start * size, stop * size)
        return self.is_due and native.normalize(activation, self._x.data, self._of_channels, channels, out)


class BatchedLayerNorm(_Norm):
    """Layer norm of all rows, then each member's own scale and shift."""

    label = "layer norm"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._shape = self._layer.normalized_shape

    @classmethod
    def fits(cls, node: Node) -> bool:
        return type(node.module) is nn.LayerNorm and not is_hooked(node.module)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.STACK], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        y = F.layer_norm(inputs[0], self._shape, eps=self._eps)
        places = (self.rows, *[1] * (y.ndim - 1 - len(self._shape)), *self._shape)
        if self._weight is not None:
            y = y * self._weight.view(places)
        return y if self._bias is None else y + self._bias.view(places)


class BatchedGroupNorm(_Norm):
    """Group norm over the channels of all members; no group spans two members."""

    label = "group norm over channels"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._groups = self._layer.num_groups * self.rows

    @classmethod
    def fits(cls, node: Node) -> bool:
        return type(node.module) is nn.GroupNorm and not is_hooked(node.module)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.CHANNELS], Layout.CHANNELS

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        weight, bias = (None if tensor is None else tensor.flatten() for tensor in (self._weight, self._bias))
        x: torch.Tensor = inputs[0]
        if not x.requires_grad:
            x = x.contiguous()  # torch 2.13's backward crashes on channels-last images that need no gradient
        return F.group_norm(x, self._groups, weight, bias, self._eps)
