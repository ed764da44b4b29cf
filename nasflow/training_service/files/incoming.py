"""Which files may come from a host, that is not trusted, into a study's root, and how they get there."""

import contextlib
import hashlib
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

KEPT = frozenset({"events.jsonl", "job.log", "job.json", "exit.json", "cancel", "claim", "run"})
"""Files in a job's folder that each side writes itself, and that are never copied."""

CHECKPOINT = re.compile(r"epoch-\d+(\.\w+)*", re.ASCII)
_RANKS = re.compile(r"(epoch-\d+\.ranks\.\d+)\.\d+", re.ASCII)  # of an epoch, file 0 is the manifest of the others
_LONGEST_NAME = 255  # bytes


def may_come(path: PurePosixPath, folders: Collection[str]) -> bool:
    """Whether a file may be copied here.

    Args:
        path: relative to the root.
        folders: relative to the root; in those of trials only checkpoints may come.
    """
    name = path.name
    if str(path.parent) not in folders or name in KEPT or name == "..":
        return False
    if not name.isprintable() or len(name.encode(errors="replace")) > _LONGEST_NAME:
        return False
    return path.parts[0] != "trials" or CHECKPOINT.fullmatch(name) is not None


def manifest_of(name: str) -> str | None:
    """Return the name of the manifest that lists a file, which ranks have saved; None for any other file."""
    found = _RANKS.fullmatch(name)
    return found and f"{found[1]}.0"


def manifest_digest(file: Path) -> str:
    """Return the SHA-256 of a manifest; empty for any other file, and for one that is missing."""
    if manifest_of(file.name) != file.name:
        return ""
    try:
        return hashlib.sha256(file.read_bytes()).hexdigest()
    except FileNotFoundError:
        return ""


def place_links(whole: Path, places: Iterable[Path]) -> None:
    """Give a file that is written whole, on the same disk, the names at `places`, in place of what has them."""
    for place in places:
        place.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            place.unlink()
        os.link(whole, place)


def drop_checkpoints(root: Path, kept: Iterable[str]) -> None:
    """Remove checkpoints that are in the folder of one of `kept` and are not among these. All are relative to root."""
    by_folder: dict[Path, set[str]] = defaultdict(set)
    for path in kept:
        place = root / path
        by_folder[place.parent].add(place.name)
    for folder, there in by_folder.items():
        for file in folder.iterdir() if folder.is_dir() else ():
            if file.name not in there and CHECKPOINT.fullmatch(file.name):
                file.unlink()
