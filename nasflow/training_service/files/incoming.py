"""Which files may come from a host, that is not trusted, into a study's root, and how they get there."""

import contextlib
import os
import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from pathlib import Path, PurePosixPath

KEPT = frozenset({"events.jsonl", "job.log", "job.json", "exit.json", "cancel", "claim", "run"})
"""Files in a job's folder that each side writes itself, and that are never copied."""

CHECKPOINT = re.compile(r"epoch-\d+(\.\w+)*", re.ASCII)
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
