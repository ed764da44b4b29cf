"""Small files that a power cut does not cut short, and what to do with one that is damaged nevertheless."""

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_LOG = logging.getLogger(__name__)


def write_aside(path: Path, text: str) -> None:
    """Write a file atomically: it is either complete or absent, or the one before, also after a power cut.

    Its name survives a power cut only after `sync_folder`.
    """
    aside = path.with_name(path.name + ".new")
    with aside.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(path)


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner can read, in place of another. It may not survive a power cut."""
    aside = path.with_name(f"{path.name}.new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(text)
    aside.replace(path)


def sync_folder(path: Path) -> None:
    """Sync a folder; before this, new names in it may not survive a power cut."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_whole(path: Path, parse: Callable[[bytes], T]) -> T | None:
    """Return what `parse` makes of a file; None if it is missing or damaged, which is when `parse` raises ValueError.

    A damaged file is set aside (`set_aside`), so that it counts as missing from then on.
    """
    try:
        return parse(path.read_bytes())
    except FileNotFoundError:
        return None
    except ValueError as error:
        set_aside(path, error)
        return None


def set_aside(path: Path, error: ValueError) -> None:
    """Rename a damaged file to `<name>.damaged`, and log one line about it."""
    aside = path.with_name(f"{path.name}.damaged")
    path.replace(aside)
    _LOG.warning("%s is damaged and is now %s: %s", path, aside.name, " ".join(str(error).split())[:200])
