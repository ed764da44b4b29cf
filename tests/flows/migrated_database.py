"""The new database of a Prefect server, kept below `~/.cache/nasflow-tests`: making one takes five seconds."""

import shutil
import sqlite3
import tempfile
from importlib.metadata import version
from pathlib import Path

KEPT = Path.home() / ".cache" / "nasflow-tests" / f"prefect-{version('prefect')}.db"


def copy_kept(database: Path) -> bool:
    """Make the database, unless there is one. Returns whether the server has to make it, because none was kept."""
    if database.exists():
        return False
    if not KEPT.exists():
        return True
    database.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(KEPT, database)
    return False


def keep(database: Path) -> None:
    """Keep what a server has just made, complete or not at all."""
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=KEPT.parent) as folder:
        copy = Path(folder) / "whole.db"
        with sqlite3.connect(database) as made:
            made.execute("VACUUM INTO ?", [str(copy)])
        copy.replace(KEPT)
