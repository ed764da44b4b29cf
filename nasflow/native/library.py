"""The functions of kernels.c."""

import ctypes
import logging
import os
import subprocess
from functools import lru_cache

import torch

from nasflow.native.cached import cached_library
from nasflow.native.structs import LAYOUT

logger = logging.getLogger(__name__)

_pointer, _int, _double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_line = [_pointer, _int]  # a matrix, and the distance from line to line
_FUNCTIONS = {
    "nasflow_run": (None, [_pointer, _int]),
    "nasflow_log_softmax": (None, [_pointer] * 3 + [_int] * 2),
    "nasflow_log_softmax_backward": (None, [_pointer] * 4 + [_int] * 2),
    "nasflow_cross_entropy": (ctypes.c_int, [_pointer] * 6 + [_int] * 3),
    "nasflow_pointwise": (None, [_int, *_line * 3, _int, _int]),
    "nasflow_batch_statistics": (None, [*_line, *[_pointer] * 4, _int, _int, _double, _double]),
    "nasflow_normalize": (None, [_int, *_line, *[_pointer] * 4, *_line, _int, _int]),
    "nasflow_batch_norm_backward": (None, [*_line * 2, *[_pointer] * 3, *_line, *[_pointer] * 2, _int, _int]),
    "nasflow_adam": (None, [_pointer] * 5 + [_int, _int, _double, ctypes.c_int]),
}


def library() -> ctypes.CDLL | None:
    """Return the functions of kernels.c, compiled and loaded by the first call.

    `NASFLOW_NATIVE=0` in the environment turns them off.

    Returns:
        None if they are turned off or cannot be compiled or loaded, or if torch has several threads, which share work
        better.
    """
    return _library() if torch.get_num_threads() == 1 else None


def is_available() -> bool:
    """Whether there are native kernels in this process, as long as torch has one thread."""
    return library() is not None


def look_again() -> None:
    """Let the next call look for native kernels again, and say so again, if there are none."""
    if library() is None:
        _library.cache_clear()


@lru_cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("NASFLOW_NATIVE") == "0":
        return None
    try:
        found = cached_library(LAYOUT)
    except (OSError, subprocess.SubprocessError) as error:
        logger.warning("Small models train somewhat slower, by torch instead of native kernels: %s", error)
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found
