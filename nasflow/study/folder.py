"""A study's folder of jobs and checkpoints: it belongs to one recorded study, and no other may use it."""

import contextlib
import json
import os
import secrets
from datetime import datetime
from pathlib import Path

from nasflow.errors import StudyError
from nasflow.system.small_files import set_aside, sync_folder

MARK = "study.json"


def claim_folder(folder: Path, name: str, created_at: datetime) -> None:
    """Mark `folder` (made if missing) as that of the study created then; harmless when repeated.

    Every study numbers its jobs and trials from 0, so another study's files would be mistaken for this one's. A damaged
    mark is renewed if it is not older than the study.

    Raises:
        StudyError: the folder holds jobs of a study that is not in this store.
    """
    mark = folder / MARK
    identity = _identity(name, created_at)
    if _is_damaged(mark, created_at) or not any((folder / part).exists() for part in (MARK, "jobs", "trials")):
        folder.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):  # a search that began at the same time was faster
            _write_new(mark, json.dumps(identity))
        sync_folder(folder)  # jobs without the mark would be refused
    if is_claimed(folder, name, created_at):
        return
    raise StudyError(
        f"{folder} holds jobs and checkpoints of a study '{name}' that is not the one in this store (was its database "
        "moved or removed?): use its store, move the folder away, or give the search another name"
    )


def _write_new(path: Path, text: str) -> None:
    """Write a file that others may read as the umask says, complete when its name appears if there are hard links.

    Raises:
        FileExistsError: there is one.
    """
    aside = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        _write(aside, text)
        try:
            os.link(aside, path)
        except FileExistsError:
            raise
        except OSError:  # exFAT, SMB and others have no hard links
            _write(path, text)
    finally:
        aside.unlink(missing_ok=True)


def _write(path: Path, text: str) -> None:
    with path.open("x") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def is_claimed(folder: Path, name: str, created_at: datetime) -> bool:
    """Whether `folder` is marked as this study's."""
    try:
        return bool(json.loads((folder / MARK).read_bytes()) == _identity(name, created_at))
    except (FileNotFoundError, ValueError):
        return False


def _is_damaged(mark: Path, created_at: datetime) -> bool:
    """Whether a mark was damaged and is now set aside. One that is older than the study may be another's, and stays."""
    try:
        json.loads(mark.read_bytes())
    except FileNotFoundError:
        return False
    except ValueError as error:
        if mark.stat().st_mtime < created_at.timestamp():
            return False
        set_aside(mark, error)
        return True
    return False


def _identity(name: str, created_at: datetime) -> dict[str, str]:
    return {"name": name, "created_at": created_at.isoformat()}
