"""kernels.c made a library: once for a machine, and kept in the cache."""

import hashlib
import platform
import shutil
import subprocess
import tempfile
from pathlib import Path

from nasflow.caches import cache_dir

COMPILERS = ("cc", "gcc", "clang")
"""Any of these will do."""

_SOURCE = Path(__file__).parent / "kernels.c"
_FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-shared", "-fPIC")
_SECONDS = 120  # to compile takes less than one


def find_compiler() -> str | None:
    """The path of the first compiler that there is."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def compiled() -> Path:
    """The path of the library; compiles it if it is not there for this source, compiler and processor.

    Raises:
        OSError: there is no compiler, or no place to write to.
        subprocess.SubprocessError: the compiler failed.
    """
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError(f"there is no C compiler ({', '.join(COMPILERS)})")
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
