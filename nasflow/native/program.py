"""Operations on tensors that stay in place, to be run many times: a sequence of them is one call."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nasflow.native.library import library
from nasflow.native.structs import DEEPEST, OperationStruct

ACTIVATIONS = ("relu", "gelu", "tanh", "sigmoid", "silu")
BY_OUTPUT = frozenset({"relu", "tanh", "sigmoid"})
"""Activations that need their output for the backward, not their input."""

_PRODUCTS, _SUMS = 2 * len(ACTIVATIONS), 2 * len(ACTIVATIONS) + 1


class Operation:
    """One operation; calling it runs it.

    Args:
        struct: its description for kernels.c.
        tensors: those that it reads and writes, which it keeps alive.
    """

    def __init__(self, struct: OperationStruct, tensors: Sequence[Tensor | None]):
        self.struct = struct
        self._tensors = tensors

    def __call__(self) -> None:
        """Run the operation."""
        Program([self])()


class Program:
    """Operations in order, as one call."""

    def __init__(self, operations: Sequence[Operation]):
        self._operations = operations
        self._structs = _Structs(operations)

    def __call__(self) -> None:
        """Run the operations."""
        self._structs.run()


class Moving:
    """Operations that run on different tensors each time, of the same shapes and strides.

    Args:
        operations: operations on parts of three tensors, and maybe a bias; the caller keeps all of them alive.
        x: the tensor that contains the first operand of each; `y` and `out` likewise.
    """

    def __init__(self, operations: Sequence[Operation], x: Tensor, y: Tensor, out: Tensor):
        self._structs = _Structs(operations)
        starts = (x.data_ptr(), y.data_ptr(), out.data_ptr())
        self._places = [
            (struct, struct.x - starts[0], struct.y - starts[1], struct.out - starts[2])
            for struct in self._structs.array
        ]

    def __call__(self, x: Tensor, y: Tensor, out: Tensor) -> None:
        """Run the operations."""
        starts = (x.data_ptr(), y.data_ptr(), out.data_ptr())
        for struct, of_x, of_y, of_out in self._places:
            struct.x, struct.y, struct.out = starts[0] + of_x, starts[1] + of_y, starts[2] + of_out
        self._structs.run()


class _Structs:
    """The structs of operations as one array."""

    def __init__(self, operations: Sequence[Operation]):
        functions = library()
        assert functions is not None  # noqa: S101 - without it there are no operations
        self.array = (OperationStruct * len(operations))(*(operation.struct for operation in operations))
        self._run, self._address, self._count = functions.nasflow_run, ctypes.addressof(self.array), len(operations)

    def run(self) -> None:
        self._run(self._address, self._count)


def as_programs(calls: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """Return the same calls, with consecutive operations joined into programs."""
    found: list[Callable[[], Any]] = []
    run: list[Operation] = []
    for call in [*calls, None]:
        if isinstance(call, Operation):
            run.append(call)
            continue
        if run:
            found.append(Program(run))
            run = []
        if call is not None:
            found.append(call)
    return found


def activation(name: str, x: Tensor, out: Tensor) -> Operation | None:
    """Return the operation `out = f(x)`, one of `ACTIVATIONS`; None if no kernel fits."""
    return _pointwise(ACTIVATIONS.index(name), x, None, out) if name in ACTIVATIONS else None


def activation_backward(name: str, grad: Tensor, value: Tensor, out: Tensor) -> Operation | None:
    """Return the operation `out = grad * f'`; None if no kernel fits.

    Args:
        name: one of `ACTIVATIONS`.
        grad: the gradient of the activation's output.
        value: the activation's output for `BY_OUTPUT`, its input for others.
        out: the gradient of its input.
    """
    if name not in ACTIVATIONS:
        return None
    return _pointwise(len(ACTIVATIONS) + ACTIVATIONS.index(name), grad, value, out)


def _pointwise(kind: int, x: Tensor, y: Tensor | None, out: Tensor) -> Operation | None:
    tensors = (x, out) if y is None else (x, y, out)
    if not fits(*tensors) or not all(tensor.is_contiguous() for tensor in tensors):
        return None
    struct = OperationStruct(kind=kind, x=x.data_ptr(), y=None if y is None else y.data_ptr(), out=out.data_ptr())
    struct.sizes[0] = out.numel()
    return Operation(struct, (x, y, out))


def products(x: Tensor, y: Tensor, out: Tensor, bias: Tensor | None = None, adds: bool = False) -> Operation | None:
    """Return the operation `out[r] = x[r] @ y[r]` of `[R, m, k]` and `[R, k, n]`; None if no kernel fits.

    Args:
        x: may be expanded over the rows, and transposed; so may `y`.
        bias: `[R, 1, n]`, added to every line.
        adds: add the products to what `out` contains.
    """
    tensors = [x, y, out, *([] if bias is None else [bias])]
    lines = [_lines(tensor) for tensor in (x, y, out)]
    dense = all(lines) and not lines[2][1] and (bias is None or bias.stride(2) == 1)  # type: ignore[index]
    if not dense or x.shape[2] > DEEPEST or not fits(*tensors) or (adds and bias is not None):
        return None
    rows, m, n = out.shape
    struct = OperationStruct(kind=_PRODUCTS, x=x.data_ptr(), y=y.data_ptr(), out=out.data_ptr(), adds=adds)
    struct.bias = None if bias is None else bias.data_ptr()
    struct.sizes[:] = [rows, m, n, x.shape[2]]
    struct.strides[:] = [x.stride(0), y.stride(0), 0 if bias is None else bias.stride(0), out.stride(0)]
    struct.leading[:] = [line[0] for line in lines if line]
    struct.transposed[:] = [line[1] for line in lines[:2] if line]
    return Operation(struct, (x, y, out, bias))


def sums(x: Tensor, out: Tensor) -> Operation | None:
    """Return the operation that sums `[R, m, n]` over `m` to `out[r, n]`; None if no kernel fits."""
    if not fits(x, out) or x.stride(2) != 1 or out.stride(1) != 1:
        return None
    struct = OperationStruct(kind=_SUMS, x=x.data_ptr(), out=out.data_ptr())
    struct.sizes[:3] = x.shape
    struct.strides[0], struct.strides[3], struct.leading[0] = x.stride(0), out.stride(0), x.stride(1)
    return Operation(struct, (x, out))


def fits(*tensors: Tensor) -> bool:
    """Whether there are native kernels, and these tensors have a type and device that they can use."""
    return library() is not None and all(
        tensor.dtype is torch.float32 and tensor.is_cpu and tensor.numel() > 0 for tensor in tensors
    )


def _lines(tensor: Tensor) -> tuple[int, bool] | None:
    """Return the distance between lines of `[R, a, b]`, and whether it is transposed; None if neither way is dense.

    None also for tensors of other shapes, as of an operand without its rows.
    """
    if tensor.dim() != 3:
        return None
    _, a, b = tensor.shape
    if tensor.stride(2) == 1 and (tensor.stride(1) >= b or a == 1):
        return max(tensor.stride(1), b), False
    if tensor.stride(1) == 1 and (tensor.stride(2) >= a or b == 1):
        return max(tensor.stride(2), a), True
    return None
