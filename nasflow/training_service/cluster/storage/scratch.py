"""Folders of runs on a node's own disk. What killed processes left is removed by the next one."""

import fcntl
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from nasflow.errors import NasflowError


@contextmanager
def own_folder(scratch: str | None) -> Iterator[Path]:
    """Make a folder for this process, and remove it at the end of the block.

    Args:
        scratch: the folder that has those of all users; None for the one of temporary files.

    Raises:
        NasflowError: others can write there, or this process can't.
    """
    place = scratch or tempfile.gettempdir()
    try:
        folder = _tidied(place) / f"run-{secrets.token_hex(8)}"
        lock_file = folder.with_suffix(".lock")
        lock = _locked(lock_file)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise NasflowError(
            f"training_service.storage.scratch: can't write below {place} on the node ({error.strerror or error})"
        ) from error
    with lock:
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
            lock_file.unlink(missing_ok=True)


def _locked(path: Path) -> BinaryIO:
    """Return a new file, open and locked, that no tidying process has removed in between."""
    while True:
        lock = path.open("ab")
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.exists() and os.path.samestat(os.fstat(lock.fileno()), path.stat()):
            return lock
        lock.close()


def _tidied(scratch: str) -> Path:
    """Return the folder that is for nasflow and this user, and remove what killed processes left in it."""
    place = Path(scratch) / f"nasflow-{os.geteuid()}"
    place.mkdir(parents=True, mode=0o700, exist_ok=True)
    about = place.lstat()
    if place.is_symlink() or about.st_uid != os.geteuid() or about.st_mode & 0o022:
        raise NasflowError(f"others can write {place}; set training_service.storage.scratch")
    for left in place.glob("run-*.lock"):
        with left.open("ab") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            shutil.rmtree(left.with_suffix(""), ignore_errors=True)
            left.unlink(missing_ok=True)
    for orphan in place.glob("run-*"):  # what a program still wrote whose flow run was killed
        if orphan.suffix != ".lock" and not orphan.with_suffix(".lock").exists():
            shutil.rmtree(orphan, ignore_errors=True)
    return place
