"""The folder for files that nasflow can make again."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """Return `$XDG_CACHE_HOME/nasflow`, or `~/.cache/nasflow`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nasflow"
