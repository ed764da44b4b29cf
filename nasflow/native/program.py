"""Operations on tensors that stay where they are, to be run many times: a row of them is one call."""

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nasflow.native.library import library

ACTIVATIONS = ("relu", "gelu", "tanh", "sigmoid", "silu")
BY_OUTPUT = frozenset({"relu", "tanh", "sigmoid"})
"""Activations whose backward wants their output, not their input."""

DEEPEST = 512
"""The longest sum of a product, as in kernels.c."""

_PRODUCTS, _SUMS = 2 * len(ACTIVATIONS), 2 * len(ACTIVATIONS) + 1


class _Struct(ctypes.Structure):
    """`struct operation` of kernels.c."""

    _fields_ = (
        ("kind", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("y", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("sizes", ctypes.c_int64 * 4),
        ("strides", ctypes.c_int64 * 4),
        ("leading", ctypes.c_int64 * 3),
        ("transposed", ctypes.c_int64 * 2),
        ("adds", ctypes.c_int64),
    )


class Operation:
    """One operation; calling it runs it.

    Args:
        struct: what it is.
        tensors: that it reads and writes; they stay alive as long as it.
    """

    def __init__(self, struct: _Struct, tensors: Sequence[Tensor | None]):
        self.struct = struct
        self._tensors = tensors

    def __call__(self) -> None:
        """Run it."""
        Program([self])()


class Program:
    """Operations in order, as one call."""

    def __init__(self, operations: Sequence[Operation]):
        self._operations = operations
        self._structs = _Structs(operations)

    def __call__(self) -> None:
        """Run them."""
        self._structs.run()


class Moving:
    """Operations that are run on other tensors each time, of the same shapes and strides.

    Args:
        operations: on parts of three tensors, and maybe a bias; whoever runs them keeps all alive.
        x: the first tensor, in which all their first ones lie; so `y` and `out`.
    """

    def __init__(self, operations: Sequence[Operation], x: Tensor, y: Tensor, out: Tensor):
        self._structs = _Structs(operations)
        starts = (x.data_ptr(), y.data_ptr(), out.data_ptr())
        self._places = [
            (struct, struct.x - starts[0], struct.y - starts[1], struct.out - starts[2])
            for struct in self._structs.array
        ]

    def __call__(self, x: Tensor, y: Tensor, out: Tensor) -> None:
        """Run them."""
        starts = (x.data_ptr(), y.data_ptr(), out.data_ptr())
        for struct, of_x, of_y, of_out in self._places:
            struct.x, struct.y, struct.out = starts[0] + of_x, starts[1] + of_y, starts[2] + of_out
        self._structs.run()


class _Structs:
    """What operations are, side by side."""

    def __init__(self, operations: Sequence[Operation]):
        functions = library()
        assert functions is not None  # noqa: S101 - or there would be no operations
        self.array = (_Struct * len(operations))(*(operation.struct for operation in operations))
        self._run, self._address, self._count = functions.nasflow_run, ctypes.addressof(self.array), len(operations)

    def run(self) -> None:
        self._run(self._address, self._count)


def as_programs(calls: Sequence[Callable[[], Any]]) -> list[Callable[[], Any]]:
    """The same calls, with operations that follow each other in one."""
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
    """`out = f(x)`, one of `ACTIVATIONS`; None if it can't be done here."""
    return _pointwise(ACTIVATIONS.index(name), x, None, out) if name in ACTIVATIONS else None


def activation_backward(name: str, grad: Tensor, value: Tensor, out: Tensor) -> Operation | None:
    """`out = grad * f'`, with the output as `value` for `BY_OUTPUT` and the input for others; None as above."""
    if name not in ACTIVATIONS:
        return None
    return _pointwise(len(ACTIVATIONS) + ACTIVATIONS.index(name), grad, value, out)


def _pointwise(kind: int, x: Tensor, y: Tensor | None, out: Tensor) -> Operation | None:
    tensors = (x, out) if y is None else (x, y, out)
    if not fits(*tensors) or not all(tensor.is_contiguous() for tensor in tensors):
        return None
    struct = _Struct(kind=kind, x=x.data_ptr(), y=None if y is None else y.data_ptr(), out=out.data_ptr())
    struct.sizes[0] = out.numel()
    return Operation(struct, (x, y, out))


def products(x: Tensor, y: Tensor, out: Tensor, bias: Tensor | None = None, adds: bool = False) -> Operation | None:
    """`out[r] = x[r] @ y[r]` of `[R, m, k]` and `[R, k, n]`; None if it can't be done here.

    Args:
        x: its rows may be the same tensor (`expand`), it may be transposed; so may `y`.
        bias: `[R, 1, n]`, added to every line.
        adds: to what is in `out`.
    """
    tensors = [x, y, out, *([] if bias is None else [bias])]
    lines = [_lines(tensor) for tensor in (x, y, out)]
    dense = all(lines) and not lines[2][1] and (bias is None or bias.stride(2) == 1)  # type: ignore[index]
    if not dense or x.shape[2] > DEEPEST or not fits(*tensors) or (adds and bias is not None):
        return None
    rows, m, n = out.shape
    struct = _Struct(kind=_PRODUCTS, x=x.data_ptr(), y=y.data_ptr(), out=out.data_ptr(), adds=adds)
    struct.bias = None if bias is None else bias.data_ptr()
    struct.sizes[:] = [rows, m, n, x.shape[2]]
    struct.strides[:] = [x.stride(0), y.stride(0), 0 if bias is None else bias.stride(0), out.stride(0)]
    struct.leading[:] = [line[0] for line in lines if line]
    struct.transposed[:] = [line[1] for line in lines[:2] if line]
    return Operation(struct, (x, y, out, bias))


def sums(x: Tensor, out: Tensor) -> Operation | None:
    """`out[r, n]`, the sums over the middle dimension of `[R, m, n]`; None if it can't be done here."""
    if not fits(x, out) or x.stride(2) != 1 or out.stride(1) != 1:
        return None
    struct = _Struct(kind=_SUMS, x=x.data_ptr(), out=out.data_ptr())
    struct.sizes[:3] = x.shape
    struct.strides[0], struct.strides[3], struct.leading[0] = x.stride(0), out.stride(0), x.stride(1)
    return Operation(struct, (x, out))


def fits(*tensors: Tensor) -> bool:
    """Whether there are operations for such tensors here."""
    return library() is not None and all(
        tensor.dtype is torch.float32 and tensor.is_cpu and tensor.numel() > 0 for tensor in tensors
    )


def _lines(tensor: Tensor) -> tuple[int, bool] | None:
    """How far it is from line to line of a `[R, a, b]`, and whether it is transposed; None if neither lies dense."""
    _, a, b = tensor.shape
    if tensor.stride(2) == 1 and (tensor.stride(1) >= b or a == 1):
        return max(tensor.stride(1), b), False
    if tensor.stride(1) == 1 and (tensor.stride(2) >= a or b == 1):
        return max(tensor.stride(2), a), True
    return None
