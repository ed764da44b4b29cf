"""Storage that needs no copies: nodes see the study's root."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from nasflow.config.services.storage import SharedFolderConfig
from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec, job_dir
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.storage.base import RunOptions, Storage
from nasflow.training_service.files.shared_root import import_path
from nasflow.training_service.machine.job_process import GRACE


class SameFolder(Storage):
    """Nodes see the root, the code and the interpreter under the same paths.

    Args:
        root: the study's root.
        options: how its jobs run.
    """

    answers_within = GRACE + 5.0

    def __init__(self, root: Path, options: RunOptions):
        self._root, self._options = root, options

    @property
    def python(self) -> str:  # noqa: D102
        return self._there(sys.executable)

    @property
    def import_path(self) -> str:  # noqa: D102
        return os.pathsep.join(map(self._there, import_path().split(os.pathsep)))

    @property
    def root(self) -> str:  # noqa: D102
        return self._there(self._root)

    @property
    def folder(self) -> str:  # noqa: D102
        return self.root

    def log(self, job_id: str) -> str:  # noqa: D102
        return self._there(job_dir(self._root, job_id) / "job.log")

    def why_not(self, job_id: str) -> str:  # noqa: D102
        return f"{job_dir(self._root, job_id) / 'job.log'} may show why"

    def program(self, run: Run) -> Sequence[str]:  # noqa: D102
        return [
            *("-P", "-m", "nasflow.training_service.cluster.node_program"),
            *(self._there(run.root), run.job_id, run.token, self._there(self._options.controller)),
            *("--runner", self._options.runner, "--abandoned-after", str(self._options.abandoned_after)),
        ]

    def _there(self, path: Path | str) -> str:
        """Return the path on nodes of what has this path here."""
        return str(path)


class SharedFolder(SameFolder):
    """Nodes see a folder, with the root in it, under another path. What is not in it has the same path there.

    Args:
        root: the study's root.
        options: how its jobs run.
        config: the folder's paths.
    """

    def __init__(self, root: Path, options: RunOptions, config: SharedFolderConfig):
        super().__init__(root, options)
        self._local, self._remote = Path(config.local), PurePosixPath(config.remote)

    def validate(self) -> None:
        """Raise ServiceError if the root is not in the folder."""
        if self._inside(self._root) is None:
            raise ServiceError(
                f"training_service.storage.local: the study's folder {self._root} is not in {self._local}; "
                "set work_dir to a folder in it"
            )

    def as_seen_there(self, spec: JobSpec) -> JobSpec:  # noqa: D102
        return spec.model_copy(update={"base_dir": Path(self._there(spec.base_dir.absolute()))})

    def _there(self, path: Path | str) -> str:
        inside = self._inside(Path(path))
        return str(path) if inside is None else str(self._remote / inside)

    def _inside(self, path: Path) -> Path | None:
        """Return a path relative to the folder; None if it is not in it. The root is resolved, the config need not."""
        for folder in (self._local, self._local.resolve()):
            if path.is_relative_to(folder):
                return path.relative_to(folder)
        return None
