"""A small cluster of the tests' own, whose nodes are programs that get neither the root nor its environment to see."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import psutil
from pydantic import TypeAdapter

from nasflow.config.services.storage import StorageConfig
from nasflow.system.small_files import write_aside
from nasflow.testing.training_service import running
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterService
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.local.slots import job_environment

SETTINGS = "NASFLOW_TEST_NODES"
SCRIPTED = "nasflow.testing.scripted_job:run_job_file"


class Nodes(ClusterService):
    """Starts each run as a program of its own at once, and notes its process in a folder.

    Args:
        folder: of the cluster; programs run in it, and their scratch folders are in it.
        storage: where files are.
        options: `abandoned_after` and `runner`.
    """

    kind = "nodes"
    passes_secrets = True

    def __init__(self, root: Path, slots: int, folder: Path, storage: StorageConfig, **options):
        abandoned_after, runner = options.get("abandoned_after", 3600.0), options.get("runner", SCRIPTED)
        super().__init__(root, slots, 0.2, abandoned_after, runner, storage=storage)
        self._folder = folder

    def _give(self, run: Run) -> None:
        note = self._folder / f"{run.name}.pid"
        if note.exists():
            return
        environment = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        environment |= job_environment(1, gpus=False)
        if (path := self._storage.import_path) is not None:
            environment["PYTHONPATH"] = path
        with (self._folder / "log").open("ab") as log:
            # as on a cluster, the program is the child of another, whose end is that of the run
            process = subprocess.Popen(
                ["/bin/sh", "-c", '"$@"; exit $?', "node", self._storage.python, *self._program(run)],
                env={**environment, "TMPDIR": str(self._folder), **self._secret_environment()},
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        write_aside(note, str(process.pid))

    def _look(self) -> Mapping[str, Seen]:
        alive = {note.stem: bool(processes_of(note)) for note in self._folder.glob(f"{name_prefix(self._root)}*.pid")}
        return {name: Seen(JobStatus.RUNNING if here else JobStatus.EXITED, "it ended") for name, here in alive.items()}

    def _withdraw(self, names: Sequence[str]) -> None:
        for name in names:
            for process in processes_of(self._folder / f"{name}.pid"):
                with suppress(psutil.Error):
                    process.terminate()


def processes_of(note: Path) -> list[psutil.Process]:
    """Return the processes of a node's program, its parent first."""
    if not note.exists():
        return []
    group = int(note.read_text())
    return [process for process in psutil.process_iter() if _group(process) == group and running(process)]


def _group(process: psutil.Process) -> int:
    try:
        return os.getpgid(process.pid)
    except OSError:
        return 0


def make(root: Path, slots: int) -> Nodes:
    """Return a service by the settings in the environment, as another process does."""
    settings = json.loads(os.environ[SETTINGS])
    storage = TypeAdapter(StorageConfig).validate_python(settings["storage"])
    return Nodes(root, slots, Path(settings["folder"]), storage)


def settings(folder: Path, storage: dict) -> str:
    """Return the settings of a cluster, and make its folder."""
    folder.mkdir(exist_ok=True)
    return json.dumps({"folder": str(folder), "storage": storage})
