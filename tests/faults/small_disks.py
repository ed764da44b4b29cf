"""Small disks (tmpfs) for the parts of a search, which can be filled."""

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.faults.storage import JOBS, STORE

_MEGABYTES = 64
_PLACES = (JOBS, STORE, "tmp", "cache")


def no_small_disk() -> str | None:
    """Why no small disk can be mounted here."""
    if os.geteuid() != 0:
        return "only root may mount a small disk"
    with tempfile.TemporaryDirectory() as place:
        tried = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True, text=True, check=False)
        if tried.returncode != 0:
            return f"no small disk can be mounted: {tried.stderr.strip()}"
        subprocess.run(["umount", place], check=True)
    return None


@contextmanager
def small_disks(folder: Path, cache: Path) -> Iterator[None]:
    """Within it, each part of the search in a folder is on a small disk of its own, its cache a copy of this one."""
    with ExitStack() as stack:
        for place in (folder / name for name in _PLACES):
            place.mkdir(parents=True)
            options = f"size={_MEGABYTES}m"
            subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)], check=True)
            stack.callback(subprocess.run, ["umount", "--lazy", str(place)], check=True)
        shutil.copytree(cache, folder / "cache", dirs_exist_ok=True)
        yield
