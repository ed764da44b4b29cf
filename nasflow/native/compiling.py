"""Compiles kernels.c into a library."""

import hashlib
import platform
import shutil
import subprocess
from pathlib import Path

from nasflow.system.processor import cpu_info

COMPILERS = ("cc", "gcc", "clang")
"""Any of these will do."""

# Read on import, as modules are: without the file, which is missing for a moment while nasflow is upgraded, a job would
# train on torch, and end with other last bits.
_SOURCE = (Path(__file__).parent / "kernels.c").read_text()
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")
_SECONDS = 120  # compiling takes less than one


def find_compiler() -> str | None:
    """Return the path of the first compiler that is installed."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def fingerprint(compiler: str) -> str:
    """Return a hash of all that a library depends on: source, flags, compiler and processor."""
    info = cpu_info()  # what `-march=native` depends on: homes are shared by machines that differ
    processor = [info.get(name, "") for name in ("model name", "flags", "Features")] if info else [platform.processor()]
    made_of = [_SOURCE, *_FLAGS, compiler, str(Path(compiler).stat().st_mtime_ns), *processor]
    return hashlib.sha256(chr(0).join([*made_of, platform.machine()]).encode()).hexdigest()[:16]


def compile_kernels(compiler: str, made: Path) -> None:
    """Compile kernels.c to a library at `made`.

    Raises:
        OSError: the compiler cannot be run, or failed.
        subprocess.SubprocessError: it took too long.
    """
    command = [compiler, *_FLAGS, "-x", "c", "-", "-o", str(made), "-lm"]
    done = subprocess.run(
        command, check=False, input=_SOURCE, capture_output=True, text=True, errors="replace", timeout=_SECONDS
    )
    if done.returncode:
        problem = next((line for line in done.stderr.splitlines() if "error" in line), f"exit {done.returncode}")
        raise OSError(f"{compiler} failed: {problem}")
