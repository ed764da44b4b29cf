"""Notes of what checks of storages have written, so that a later check removes what a killed or failed one has left."""

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from nasflow.config.services.storage import ObjectStoreConfig
from nasflow.system.caches import cache_dir
from nasflow.system.process_id import ProcessId, process_id


@contextmanager
def noted(config: ObjectStoreConfig, name: str) -> Iterator[None]:
    """Keep a note of a check that writes below a name. The note stays if this raises or the process dies."""
    note, process = _folder(config) / name, process_id(os.getpid())
    with suppress(OSError):  # without a home that can be written, only this net is missing
        note.parent.mkdir(parents=True, exist_ok=True)
        note.write_text(process.model_dump_json() if process else "")
    yield
    note.unlink(missing_ok=True)


def unfinished(config: ObjectStoreConfig) -> list[str]:
    """Return the names of checks of this storage that no longer run, and have not removed what they wrote."""
    folder = _folder(config)
    return [note.name for note in sorted(folder.iterdir()) if not _runs(note)] if folder.is_dir() else []


def forget(config: ObjectStoreConfig, name: str) -> None:
    """Remove the note of a check."""
    (_folder(config) / name).unlink(missing_ok=True)


def _folder(config: ObjectStoreConfig) -> Path:
    storage = hashlib.blake2b(config.model_dump_json().encode(), digest_size=8).hexdigest()
    return cache_dir() / "storage-checks" / storage


def _runs(note: Path) -> bool:
    try:
        return ProcessId.model_validate(json.loads(note.read_text())).alive()
    except (OSError, ValueError):  # it was being written when its process died
        return False
