"""The structs of kernels.c."""

import ctypes

DEEPEST = 512
"""The longest sum of a product, as in kernels.c."""

_VERSION = 1  # as in kernels.c: raised there and here when fields change


class OperationStruct(ctypes.Structure):
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


class AdamStruct(ctypes.Structure):
    """`struct adam` of kernels.c: the hyper-parameters of a row."""

    _fields_ = tuple((name, ctypes.c_double) for name in ("lr", "beta1", "beta2", "eps", "weight_decay", "steps"))


LAYOUT = (_VERSION, ctypes.sizeof(OperationStruct), ctypes.sizeof(AdamStruct), DEEPEST)
"""What `nasflow_layout` of a compiled library must contain."""
