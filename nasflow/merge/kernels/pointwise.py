"""Elementwise operations."""

import itertools
from collections.abc import Hashable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from nasflow import native
from nasflow.merge.kernels.base import Kernel
from nasflow.merge.tape.row_copies import Functions, moves_between, room_like
from nasflow.merge.tape.tape import Tape
from nasflow.merge.tape.tape_values import Spot
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import pairwise, pointwise
from nasflow.merge.values.layout import Layout, join, split
from nasflow.merge.values.parameter_stacks import Bench

_aten = torch.ops.aten
# Overloads by name, because on little data torch takes as long to find them as to run them.
_OF_TORCH: dict[str, Functions] = {
    "identity": (lambda x, out: out.copy_(x), lambda grad, x, y, out: out.copy_(grad)),
    "relu": (
        lambda x, out: torch.clamp_min(x, 0, out=out),
        lambda grad, x, y, out: _aten.threshold_backward.grad_input(grad, y, 0, grad_input=out),
    ),
    "gelu": (
        lambda x, out: _aten.gelu.out(x, out=out),
        lambda grad, x, y, out: _aten.gelu_backward.grad_input(grad, x, grad_input=out),
    ),
    "tanh": (
        lambda x, out: torch.tanh(x, out=out),
        lambda grad, x, y, out: _aten.tanh_backward.grad_input(grad, y, grad_input=out),
    ),
    "sigmoid": (
        lambda x, out: torch.sigmoid(x, out=out),
        lambda grad, x, y, out: _aten.sigmoid_backward.grad_input(grad, y, grad_input=out),
    ),
    "silu": (
        lambda x, out: _aten.silu.out(x, out=out),
        lambda grad, x, y, out: _aten.silu_backward.grad_input(grad, x, grad_input=out),
    ),
}


def _native_first(name: str, of_torch: Functions) -> Functions:
    def forward(x: torch.Tensor, out: torch.Tensor) -> None:
        if not native.activate(name, x, out):
            of_torch[0](x, out)

    def backward(grad: torch.Tensor, x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> None:
        if not native.activate_backward(name, grad, y if name in _BY_OUTPUT else x, out):
            of_torch[1](grad, x, y, out)

    return forward, backward


_SEGMENTS = {name: _native_first(name, functions) for name, functions in _OF_TORCH.items()}
_BY_OUTPUT = native.BY_OUTPUT | {"identity"}  # the backward of these does not need the input
_SEGMENT_LAYERS = {nn.Identity: "identity", nn.ReLU: "relu", nn.Tanh: "tanh", nn.Sigmoid: "sigmoid", nn.SiLU: "silu"}


class Pointwise(Kernel):
    """Any functions of one tensor, also different ones for runs of rows (activations that are searched).

    Attributes:
        overwrite: whether the input may be overwritten, because nothing else reads it.
    """

    label = "pointwise"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        self._runs: list[tuple[Any, int, str | None]] = []
        last: Hashable = None
        for node in nodes:
            if self._runs and node.signature == last:
                function, size, name = self._runs[-1]
                self._runs[-1] = (function, size + 1, name)
            else:
                self._runs.append((pointwise(node), 1, _segment_name(node)))
                last = node.signature
        self._sizes = [size for _, size, _ in self._runs]
        names = [name for _, _, name in self._runs]
        self._is_relu = names == ["relu"]
        self.overwrite = False
        self._names = [name for name in names if name]
        self._segments = [_SEGMENTS[name] for name in self._names] if all(names) else None
        self._by_output = _BY_OUTPUT.issuperset(names)

    @classmethod
    def fits(cls, node: Node) -> bool:
        return pointwise(node) is not None

    @classmethod
    def batch_key(cls, node: Node) -> Hashable:
        return ("pointwise", node.inputs[0].spec, node.spec)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        layout = Layout.STACK if given[0] is Layout.SHARED else given[0]
        return [layout], layout

    @property
    def is_tapeable(self) -> bool:
        """Whether all functions are among the usual activations."""
        return self._segments is not None

    def record(self, tape: Tape, inputs: list[list[Spot]], training: bool, cuts: Sequence[int]) -> list[Spot]:
        """See `Tapeable`. Value and gradient are overwritten if only this reads them and the backward allows it."""
        runs = inputs[0]
        if len(runs) == 1 and runs[0].fixed and runs[0].layout is Layout.STACK:
            return [self._record_in_place(tape, runs[0])]
        return self._record_from_place_to_place(tape, runs, cuts)

    def _record_in_place(self, tape: Tape, x: Spot) -> Spot:
        in_place = self.overwrite and self._by_output
        y_data = x.data if in_place else torch.empty_like(x.data)
        grad_in = x if self.overwrite else None
        y = Spot(y_data, self.rows, x.layout, needs_grad=x.needs_grad, fixed=True, grad_in=grad_in)
        runs = list(zip(self._names, x.data.split(self._sizes), y_data.split(self._sizes), strict=True))
        for name, x_run, y_run in runs:
            tape.do(native.activation(name, x_run, y_run) or partial(_SEGMENTS[name][0], x_run, y_run))

        def backward() -> None:
            adds = not x.claim(tape)
            grad = torch.empty_like(x.data) if adds else x.grad
            grads = zip(y.grad.split(self._sizes), grad.split(self._sizes), strict=True)
            for (name, x_run, y_run), (y_grad, x_grad) in zip(runs, grads, strict=True):
                value = y_run if name in _BY_OUTPUT else x_run
                back = native.activation_backward(name, y_grad, value, x_grad)
                tape.do(back or partial(_SEGMENTS[name][1], y_grad, x_run, y_run, x_grad))
            if adds:
                tape.do(x.grad.add_, grad)

        tape.on_backward([y], backward)
        return y

    def _record_from_place_to_place(self, tape: Tape, runs: list[Spot], cuts: Sequence[int]) -> list[Spot]:
        """Write each run of rows to where it is read, so that nothing has to be gathered before or after."""
        in_place = self.overwrite and self._by_output and len(cuts) == 2 and runs[0].still
        needs_grad = any(x.needs_grad for x in runs)
        parts = [
            room_like(runs[0], stop - start, needs_grad) for start, stop in itertools.pairwise(cuts) if not in_place
        ]
        for part in parts:
            part.may_move = True
        parts = parts or [Spot(runs[0].data, self.rows, runs[0].layout, needs_grad=needs_grad, still=True)]
        names = [name for name, size in zip(self._names, self._sizes, strict=True) for _ in range(size)]
        moves = moves_between(_SEGMENTS, names, runs, parts)

        def forward() -> None:
            for move in moves:
                move.forward()

        def backward() -> None:
            adds = {id(x): x.needs_grad and not x.claim(tape) for x in runs}

            def differentiate() -> None:
                for move in moves:
                    if move.x.needs_grad:
                        move.backward(adds[id(move.x)], self._by_output)

            tape.do(differentiate)

        tape.do(forward)
        tape.on_backward(parts, backward)
        return parts

    def __call__(self, inputs: list[Any], training: bool) -> Any:
        value = inputs[0]
        if isinstance(value, list):
            functions = [function for function, size, _ in self._runs for _ in range(size)]
            return [function(row) for function, row in zip(functions, value, strict=True)]
        if self.overwrite and self._is_relu:
            return torch.relu_(value)
        if len(self._runs) == 1:
            return self._runs[0][0](value)
        layout = Layout.STACK if value.ndim > len(self.nodes[0].spec.shape) else Layout.CHANNELS
        if self._segments is not None and layout is Layout.STACK:
            return _Segments.apply(value, self._segments, self._sizes)  # type: ignore[no-untyped-call]
        pieces = split(value, self._sizes, self.rows, layout)
        return join([run[0](piece) for run, piece in zip(self._runs, pieces, strict=True)], layout)


class _Segments(torch.autograd.Function):
    """Applies different activations to runs of rows, with one result and neither a split nor a concatenation."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, segments: Any, sizes: list[int]) -> torch.Tensor:
        y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for (forward, _), x_run, y_run in zip(segments, x.split(sizes), y.split(sizes), strict=True):
            forward(x_run, y_run)
        ctx.save_for_backward(x, y)
        ctx.segments, ctx.sizes = segments, sizes
        return y

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        x, y = ctx.saved_tensors
        grad_x = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        runs = zip(ctx.segments, *(tensor.split(ctx.sizes) for tensor in (grads[0], x, y, grad_x)), strict=True)
        for (_, backward), grad_run, x_run, y_run, out_run in runs:
            backward(grad_run, x_run, y_run, out_run)
        return grad_x, None, None


def _segment_name(node: Node) -> str | None:
    if isinstance(node.module, nn.GELU) and node.module.approximate == "none":
        return "gelu"
    if node.module is not None:
        return _SEGMENT_LAYERS.get(type(node.module))
    name = str(getattr(node.target, "__name__", node.target)).removesuffix("_")
    plain = len(node.args) == 1 and not (set(node.kwargs) - {"inplace"})
    return name if name in _SEGMENTS and plain else None


class Pairwise(Kernel):
    """The sum, product, ... of two tensors of one shape, or of a tensor and a number."""

    label = "pairwise"

    def __init__(self, nodes: Sequence[Node], bench: Bench):
        super().__init__(nodes, bench)
        function = pairwise(nodes[0])
        assert function is not None  # noqa: S101 - `fits` said so
        self._function = function
        self._once = len(nodes[0].inputs) == 2 and nodes[0].inputs[0] is nodes[0].inputs[1]

    @classmethod
    def fits(cls, node: Node) -> bool:
        return pairwise(node) is not None

    @classmethod
    def batch_key(cls, node: Node) -> Hashable:
        same = len(node.inputs) == 2 and node.inputs[0] is node.inputs[1]
        return (node.signature, same)

    @classmethod
    def layouts(cls, node: Node, given: Sequence[Layout]) -> tuple[list[Layout], Layout]:
        own = [layout for layout in given if layout is not Layout.SHARED]
        order = (Layout.CHANNELS, Layout.STACK, Layout.LIST)
        layout = next((layout for layout in order if layout in own), Layout.STACK)
        return [layout] * len(given), layout

    def __call__(self, inputs: list[Any], training: bool) -> Any:
        operands = inputs[:1] if self._once else inputs
        if isinstance(inputs[0], list):
            return [self._function(*rows) for rows in zip(*operands, strict=True)]
        return self._function(*operands)
