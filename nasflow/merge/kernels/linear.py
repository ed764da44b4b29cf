"""Linear layers."""

from collections.abc import Callable, Sequence
from functools import partial
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


class BatchedLinear(Kernel):
    """`baddbmm` over the members, which all read a shared input without a copy."""

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

    @property
    def is_tapeable(self) -> bool:
        """Whether its input is a batch of vectors."""
        return len(self.nodes[0].spec.shape) == 2

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """See `Tapeable`. Runs of rows from several places get separate products, because joining them takes longer."""
        runs, weight_NOI = [tape.join([x], fixed=True) for x in inputs[0]], self.weight_NOI.detach()
        y_NBO = weight_NOI.new_empty(len(weight_NOI), runs[0].data.shape[1], weight_NOI.shape[1])
        needs_grad = bool(self._trained) or any(x.needs_grad for x in runs)
        y = Spot(y_NBO, self.rows, Layout.STACK, needs_grad=needs_grad, fixed=True)
        sizes = [x.count for x in runs]
        biases = [None] * len(runs) if self.bias_NO is None else self.bias_NO.detach().unsqueeze(1).split(sizes)
        places = list(zip(runs, weight_NOI.split(sizes), strict=True))
        for (x, weight), bias, y_run in zip(places, biases, y_NBO.split(sizes), strict=True):
            tape.do(_product(x.data, weight.transpose(1, 2), y_run, bias))

        def weigh(memory: torch.Tensor) -> None:
            for x, grad, out in zip(runs, y.grad.split(sizes), memory.split(sizes), strict=True):
                tape.do(_product(grad.transpose(1, 2), x.data, out))

        def backward() -> None:
            self._record_bias(tape, y)
            if self.weight_NOI.requires_grad:
                tape.write_parameter_grad(self.weight_NOI, weigh)
            for (x, weight), grad in zip(places, y.grad.split(sizes), strict=True):
                if x.needs_grad:
                    tape.do(_product(grad, weight, x.grad, adds=not x.claim(tape)))

        tape.on_backward([y], backward, self._trained)
        return [y]

    @property
    def _trained(self) -> list[torch.Tensor]:
        return [tensor for tensor in (self.weight_NOI, self.bias_NO) if tensor is not None and tensor.requires_grad]

    def _record_bias(self, tape: Tape, y: Spot) -> None:
        def add_up(memory: torch.Tensor) -> None:
            tape.do(native.sums(y.grad, memory) or partial(torch.sum, y.grad, 1, out=memory))

        if self.bias_NO is not None and self.bias_NO.requires_grad:
            tape.write_parameter_grad(self.bias_NO, add_up)

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
    """One dense product for all members that read the same input: members are columns of one wide layer."""

    label = "dense"

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        return [Layout.SHARED], Layout.STACK

    def __call__(self, inputs: list[Any], training: bool) -> torch.Tensor:
        bias = None if self.bias_NO is None else self.bias_NO.flatten()
        wide = F.linear(inputs[0], self.weight_NOI.flatten(0, 1), bias)
        apart: torch.Tensor = wide.unflatten(-1, (self.rows, -1))
        return apart.movedim(-2, 0)

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """See `Tapeable`."""
        if native.fits(inputs[0][0].data, self.weight_NOI):  # then separate products cost nothing extra
            shared = inputs[0][0]
            rows = Spot(shared.data.expand(self.rows, -1, -1), self.rows, Layout.STACK, needs_grad=False, fixed=True)
            return super().record(tape, [[rows]], training, cuts)
        x_BI, weight = inputs[0][0].data, self.weight_NOI.detach().flatten(0, 1)
        wide = x_BI.new_empty(len(x_BI), len(weight))
        if self.bias_NO is None:
            tape.do(torch.mm, x_BI, weight.t(), out=wide)
        else:
            tape.do(torch.addmm, self.bias_NO.detach().flatten(), x_BI, weight.t(), out=wide)
        stacked = wide.unflatten(-1, (self.rows, -1)).movedim(-2, 0)
        y = Spot(stacked, self.rows, Layout.STACK, needs_grad=bool(self._trained), fixed=True)

        def backward() -> None:
            wide_grad = y.grad.movedim(0, -2).flatten(-2)  # a view, because a spot's gradient has its value's strides
            if self.weight_NOI.requires_grad:
                tape.write_parameter_grad(
                    self.weight_NOI, lambda memory: tape.do(torch.mm, wide_grad.t(), x_BI, out=memory.flatten(0, 1))
                )
            self._record_bias(tape, y)

        tape.on_backward([y], backward, self._trained)
        return [y]


def _product(
    x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None, adds: bool = False
) -> Callable[[], Any]:
    """Return a call that writes `x @ y + bias` to `out`, or with `adds` adds it to what is there."""
    found = native.products(x, y, out, bias, adds)
    if found is not None:
        return found
    if adds:
        return partial(out.baddbmm_, x, y)
    return partial(torch.bmm, x, y, out=out) if bias is None else partial(torch.baddbmm, bias, x, y, out=out)
