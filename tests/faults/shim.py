"""Small libraries of ours that the C library of some processes asks first (`LD_PRELOAD`)."""

import shutil
import subprocess
from collections.abc import Iterable, Mapping
from pathlib import Path


def lacking() -> str | None:
    """Why there can be none here."""
    return None if shutil.which("cc") else "no C compiler (cc)"


def build(source: str, folder: Path) -> Path:
    """Make the library of a source beside this file, in an existing folder."""
    file = Path(__file__).with_name(source)
    library = folder / f"{file.stem}.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(file)]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return library


def together(environments: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Environment variables for processes that use several."""
    merged: dict[str, str] = {}
    for environment in environments:
        before = merged.get("LD_PRELOAD")
        merged |= environment
        if before:
            merged["LD_PRELOAD"] = f"{before}:{environment['LD_PRELOAD']}"
    return merged
