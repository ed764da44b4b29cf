"""Loads a compiled library. A separate process tries that first, because a bad library may crash what loads it.

That process runs this file's text as a script, so it imports only the standard library.
"""

import ctypes
import math
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

_SECONDS = 60  # to start Python takes far less than one
_GELU = 1  # its kind in kernels.c
_SCRIPT = "" if __name__ == "__main__" else Path(__file__).read_text()  # on import, as kernels.c is


def load(path: Path, layout: Sequence[int]) -> ctypes.CDLL:
    """Load a library.

    Args:
        path: the compiled library.
        layout: the version and sizes of the structs that it must have.

    Raises:
        OSError: it cannot be loaded, or has other structs.
    """
    library = ctypes.CDLL(str(path))
    try:
        found = list((ctypes.c_int64 * len(layout)).in_dll(library, "nasflow_layout"))
    except ValueError:
        raise OSError(f"{path} exports no nasflow_layout") from None
    if found != list(layout):
        raise OSError(f"the structs of {path} have the layout {found}, but {list(layout)} is expected")
    return library


def try_out(path: Path, layout: Sequence[int]) -> None:
    """Load a library in a separate process, and compute something with it.

    Raises:
        OSError: this failed or crashed.
        subprocess.SubprocessError: it took too long.
    """
    command = [sys.executable, "-I", "-S", "-c", _SCRIPT, str(path), *map(str, layout)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, errors="replace", timeout=_SECONDS)
    if done.returncode < 0:
        raise OSError(f"{path} crashes: {signal.strsignal(-done.returncode)}")
    if done.returncode > 0:
        raise OSError((done.stderr.strip() or f"{path} exits the process").splitlines()[-1])


def _compute(library: ctypes.CDLL) -> None:
    """Run a kernel: an instruction that the processor lacks crashes only when it is executed."""
    count, one = ctypes.c_int64(20), ctypes.c_int64(1)
    x = (ctypes.c_float * 20)(*(i / 4 - 2.5 for i in range(20)))
    out = (ctypes.c_float * 20)()
    library.nasflow_pointwise(ctypes.c_int64(_GELU), x, count, None, count, out, count, one, count)
    if any(abs(y - value / 2 * (1 + math.erf(value / math.sqrt(2)))) > 1e-5 for value, y in zip(x, out, strict=True)):
        raise OSError("it computes wrong numbers")


if __name__ == "__main__":
    _compute(load(Path(sys.argv[1]), [int(size) for size in sys.argv[2:]]))
