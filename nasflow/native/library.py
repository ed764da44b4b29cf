"""kernels.c as a library: compiled once for a machine, and kept in the cache."""

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from nasflow.caches import cache_dir

logger = logging.getLogger(__name__)

_SOURCE = Path(__file__).parent / "kernels.c"
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")
_COMPILERS = ("cc", "gcc", "clang")
_SECONDS = 120  # to compile takes less than one

_pointer, _int, _double = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_line = [_pointer, _int]  # a matrix, and how far it is from line to line
_FUNCTIONS = {
    "nasflow_run": (None, [_pointer, _int]),
    "nasflow_cross_entropy": (ctypes.c_int, [_pointer] * 6 + [_int] * 3),
    "nasflow_pointwise": (None, [_int, *_line * 3, _int, _int]),
    "nasflow_batch_statistics": (None, [*_line, *[_pointer] * 4, _int, _int, _double, _double]),
    "nasflow_normalize": (None, [_int, *_line, *[_pointer] * 4, *_line, _int, _int]),
    "nasflow_batch_norm_backward": (None, [*_line * 2, *[_pointer] * 3, *_line, *[_pointer] * 2, _int, _int]),
    "nasflow_adam": (None, [_pointer] * 5 + [_int, _int, _double, ctypes.c_int]),
}


def library() -> ctypes.CDLL | None:
    """The functions of kernels.c, or None: there is no compiler, or torch has several threads, who share work better.

    `NASFLOW_NATIVE=0` in the environment does without.
    """
    return _library() if torch.get_num_threads() == 1 else None


@lru_cache
def _library() -> ctypes.CDLL | None:
    if os.environ.get("NASFLOW_NATIVE") == "0":
        return None
    try:
        found = ctypes.CDLL(str(_compiled()))
    except (OSError, subprocess.SubprocessError) as error:
        logger.info("Fused steps run without native kernels, somewhat slower: %s", error)
        return None
    for name, (result, arguments) in _FUNCTIONS.items():
        function = getattr(found, name)
        function.restype, function.argtypes = result, arguments
    return found


def _compiled() -> Path:
    """The path of the library; compiles it if it is not there for this source, compiler and processor.

    Raises:
        OSError: there is no compiler, or no place to write to.
        subprocess.SubprocessError: the compiler failed.
    """
    compiler = next((found for name in _COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise FileNotFoundError(f"there is no C compiler ({', '.join(_COMPILERS)})")
    made_of = [_SOURCE.read_text(), *_FLAGS, compiler, str(Path(compiler).stat().st_mtime_ns), _processor()]
    path = cache_dir() / f"native-{hashlib.sha256(chr(0).join(made_of).encode()).hexdigest()[:16]}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            made = Path(folder) / path.name
            command = [compiler, *_FLAGS, str(_SOURCE), "-o", str(made), "-lm"]
            subprocess.run(command, check=True, capture_output=True, timeout=_SECONDS)
            made.replace(path)  # whole or not at all, for several jobs may do this at once
    return path


def _processor() -> str:
    """What `-march=native` depends on: homes are shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    said = {line.partition(":")[0].strip(): line for line in lines}
    return "".join(said.get(name, "") for name in ("model name", "flags", "Features")) + platform.machine()
