"""The compiled library in the cache.

A file is loaded only if this user alone can have written it, if it matches the SHA-256 beside it, and if a process of
its own loaded it before. Any other is replaced.
"""

import ctypes
import hashlib
import logging
import os
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from nasflow.native.compiling import COMPILERS, compile_kernels, find_compiler, fingerprint
from nasflow.native.loading import load, try_out
from nasflow.system.caches import cache_dir

logger = logging.getLogger(__name__)

_PRIVATE_FILE, _PRIVATE_FOLDER, _OTHERS_WRITE = 0o600, 0o700, 0o022


def cached_library(layout: Sequence[int]) -> ctypes.CDLL:
    """Load the library for this source, compiler and processor; compile it if it is missing or fails a check.

    Args:
        layout: the version and sizes of its structs.

    Raises:
        OSError: there is no compiler, no folder to write to, or what was compiled fails a check, too.
        subprocess.SubprocessError: a process took too long.
    """
    compiler = find_compiler()
    if compiler is None:
        raise FileNotFoundError(f"there is no C compiler ({', '.join(COMPILERS)})")
    path = _private_folder() / f"{fingerprint(compiler)}.so"
    try:
        is_there = path.exists()
        problem = _problem(path, layout) if is_there else None
        if problem is not None or not is_there:
            _build(compiler, path, layout)
        found = load(path, layout)
    except (OSError, subprocess.SubprocessError):
        _remove(path)
        raise
    if problem is not None:
        logger.warning("Compiled the native kernels again: %s", problem)
    return found


def _private_folder() -> Path:
    """The folder of compiled libraries, where nobody else can write."""
    folder = cache_dir() / "native"
    folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
    if folder.stat().st_mode & _OTHERS_WRITE:
        folder.chmod(_PRIVATE_FOLDER)
    _check_private(folder)
    return folder


def _check_private(path: Path) -> None:
    found = path.stat()
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{path} belongs to another user")
    if found.st_mode & _OTHERS_WRITE:
        raise PermissionError(f"other users can write to {path}")


def _problem(path: Path, layout: Sequence[int]) -> str | None:
    """Why a library must not be loaded; None if it may be."""
    record = _record(path)
    try:
        _check_private(path)
        _check_private(record)
        digest, *tried = record.read_text().split()
        if _digest(path) != digest:
            return f"{path} is not the file that was written there"
        if _machine() not in tried:
            try_out(path, layout)
            with suppress(OSError):  # it is tried again next time
                _write(record, [digest, *tried, _machine()])
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return str(error)
    return None


def _build(compiler: str, path: Path, layout: Sequence[int]) -> None:
    """Compile and try a library, then put it in its place, whole or not at all: several jobs may do so at once."""
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        compile_kernels(compiler, made)
        made.chmod(_PRIVATE_FILE)
        try_out(made, layout)
        _sync(made)
        _write(_record(path), [_digest(made), _machine()])  # first: other jobs reject a library without a record
        made.replace(path)
    _sync(path.parent)


def _remove(path: Path) -> None:
    for file in (path, _record(path)):
        with suppress(OSError):
            file.unlink(missing_ok=True)


def _record(path: Path) -> Path:
    """The file beside a library with its SHA-256, and a line for each kind of machine on which it was tried."""
    return path.with_suffix(".sha256")


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _machine() -> str:
    """The system kernel, for a library's name contains the processor; alike nodes of a cluster need one try."""
    kernel = os.uname()
    return hashlib.sha256(f"{kernel.sysname} {kernel.release} {kernel.version}".encode()).hexdigest()[:16]


def _write(path: Path, lines: Sequence[str]) -> None:
    with tempfile.TemporaryDirectory(dir=path.parent) as folder:
        made = Path(folder) / path.name
        made.write_text("".join(f"{line}\n" for line in lines))
        made.chmod(_PRIVATE_FILE)
        _sync(made)
        made.replace(path)


def _sync(path: Path) -> None:
    """Flush a file or folder to the disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
