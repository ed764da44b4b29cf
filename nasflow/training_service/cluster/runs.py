"""The runs of jobs that are given to a cluster: files by which a controller and a node know of each other.

A run is one start of a job. Beside what `job_records` says of jobs there is, in the job's folder::

    run/current              the token of the run that is meant to be; a second word says that it shall end
        <token>.sh           what the cluster was given, if that is a script
        <token>.given        the cluster has taken the run
        <token>.began        its program has begun on a node
        <token>.exit.json    how it ended, as its program saw it

Controllers write the first ones, holding the lock of the records; the program on the node writes the last two, and
only if the run is the current one. So a run that was given twice, by a controller that was killed at it and by the next
one, begins once; and one that lost its connection ends itself when another has taken its place.
"""

import hashlib
import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from nasflow.job.disk_full import wait_for_room
from nasflow.job.spec import JobSpec, job_dir
from nasflow.training_service.base import JobState
from nasflow.training_service.files.file_queue import JobRecords, waiting_for_room, write_aside


@dataclass(frozen=True)
class Run:
    """One start of a job."""

    root: Path
    job_id: str
    token: str

    @property
    def name(self) -> str:
        """Sets it apart from every other run on the cluster."""
        return f"{name_prefix(self.root)}{self.job_id}-{self.token}"

    @property
    def given(self) -> Path:
        """The mark that the cluster has taken it."""
        return self.file("given")

    def file(self, kind: str) -> Path:
        """One of its files."""
        return run_dir(self.root, self.job_id) / f"{self.token}.{kind}"

    def is_current(self) -> bool:
        """No other is meant to be in its place, and nobody has told it to end."""
        return _read(_current(self.root, self.job_id)) == self.token

    def begin(self) -> bool:
        """Whether this process is the first to begin it."""
        try:
            self.file("began").touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def began(self) -> bool:
        """Its program has begun on a node."""
        return self.file("began").exists()

    def end(self, state: JobState) -> None:
        """Record how it ended."""
        wait_for_room(lambda: write_aside(self.file("exit.json"), state.model_dump_json()))

    def ended(self) -> JobState | None:
        """How it ended, None if its program has not said so."""
        file = self.file("exit.json")
        list(file.parent.iterdir())  # a network file system then looks again for what it did not find before
        try:
            return JobState.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None


class ClusterRecords(JobRecords):
    """The files that controllers write. Every method expects the caller to hold the lock."""

    def enqueue(self, spec: JobSpec) -> None:
        """Put a job at the end of the queue, and forget its last run."""
        _current(self.root, spec.job_id).unlink(missing_ok=True)
        super().enqueue(spec)

    def taken(self) -> dict[str, str]:
        """The jobs that have left the queue and have not ended, and their slots."""
        folders = sorted(self._workers.iterdir()) if self._workers.is_dir() else []
        return {job_id: folder.name for folder in folders for job_id in self.claimed(folder.name)}

    def take(self, slot: str) -> str | None:
        """Give the oldest waiting job to a slot."""
        self.claims(slot).mkdir(parents=True, exist_ok=True)
        return self.claim(slot)

    def new_run(self, job_id: str) -> Run:
        """The run of a job from now on."""
        run = Run(self.root, job_id, secrets.token_hex(4))
        run_dir(self.root, job_id).mkdir(exist_ok=True)
        self._write_current(job_id, run.token)
        return run

    def run(self, job_id: str) -> Run | None:
        """The run of a job, None if it has not had any since it was submitted."""
        words = _read(_current(self.root, job_id)).split()
        return Run(self.root, job_id, words[0]) if words else None

    def revoke(self, run: Run) -> None:
        """Tell a run to end, wherever it is."""
        self._write_current(run.job_id, f"{run.token} ends")

    @waiting_for_room
    def _write_current(self, job_id: str, text: str) -> None:
        write_aside(_current(self.root, job_id), text)


def name_prefix(root: Path) -> str:
    """What the names of all runs of a root begin with."""
    return f"nasflow-{hashlib.sha256(os.fsencode(root)).hexdigest()[:10]}-"


def run_dir(root: Path, job_id: str) -> Path:
    """The folder of a job's runs."""
    return job_dir(root, job_id) / "run"


def _current(root: Path, job_id: str) -> Path:
    return run_dir(root, job_id) / "current"


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except FileNotFoundError:
        return ""
