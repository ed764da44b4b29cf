"""Shared code of services with a root folder on this machine or on a file system shared with it."""

import os
import sys
from pathlib import Path

from nasflow.clean_text import clean_text
from nasflow.errors import ServiceError
from nasflow.job.events import read_lines
from nasflow.job.spec import job_dir, stop_mark
from nasflow.load_target import import_path_without_targets
from nasflow.training_service.base import JobHandle, TrainingService


class RootHere(TrainingService):
    """Base class of services that read jobs' files in place.

    Args:
        root: the folder of the study's jobs and checkpoints.
    """

    def __init__(self, root: Path):
        try:
            self._root = root.resolve()
        except (RuntimeError, OSError) as error:  # as of links that lead to themselves
            raise ServiceError(_unusable(root, error)) from None

    def validate(self) -> None:  # noqa: D102
        try:
            folder = next(path for path in (self._root, *self._root.parents) if path.exists())
        except OSError as error:
            raise ServiceError(_unusable(self._root, error)) from None
        if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
            raise ServiceError(f"training_service: can't write below {folder}; set work_dir to a folder you own")

    def events(self, handle: JobHandle, offset: int = 0) -> tuple[list[str], int]:  # noqa: D102
        return read_lines(job_dir(self._root, handle.job_id) / "events.jsonl", offset)

    def log_tail(self, handle: JobHandle, lines: int = 20) -> str:  # noqa: D102
        log = job_dir(self._root, handle.job_id) / "job.log"
        if not log.exists():
            return ""
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 1000 * lines))
            return clean_text("\n".join(file.read().decode(errors="replace").splitlines()[-lines:]))

    def stop_trial(self, number: int) -> None:  # noqa: D102
        mark = stop_mark(self._root, number)
        mark.parent.mkdir(parents=True, exist_ok=True)
        mark.touch()

    def fetch(self, path: str) -> Path:
        """Return the path on this machine of `path`, a file or folder relative to the root.

        Raises:
            FileNotFoundError: the path does not exist.
            ServiceError: the path leads out of the root.
        """
        place = (self._root / path).resolve()
        if not place.is_relative_to(self._root):
            raise ServiceError(f"path '{path}' leads out of {self._root}; give one relative to it")
        if not place.exists():
            raise FileNotFoundError(f"there is no '{path}' in {self._root}")
        return place


def _unusable(root: Path, error: Exception) -> str:
    why = error.strerror if isinstance(error, OSError) else str(error)
    return f"work_dir: the study's folder {str(root)[:200]} can't be used ({why}); correct work_dir or name"


def import_path() -> str:
    """Return the PYTHONPATH for another process to import what this one can.

    The interpreter's own folders are left out, and those of targets, which come last where they are loaded.
    """
    own = tuple({sys.prefix, sys.base_prefix, sys.exec_prefix})
    entries = (str(Path(entry).absolute()) for entry in import_path_without_targets())
    return os.pathsep.join(entry for entry in entries if not entry.startswith(own))
