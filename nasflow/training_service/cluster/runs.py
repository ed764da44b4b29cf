"""Runs of jobs on a cluster: files through which controllers and nodes communicate.

A run is one start of a job. In addition to the files of the job queue (`files/file_queue.py`), a job's folder has::

    run/current              the token of the current run; a second word tells it to end
        <token>.sh           the script submitted to the cluster, if any
        <token>.given        the cluster has accepted the run
        <token>.began        its program has begun on a node
        <token>.node-<n>     of a run on several machines, the nth beside the first has begun
        <token>.leaves       one of these machines is taken back
        <token>.exit.json    how it ended, as reported by its program

Controllers write the first three, holding the lock of the records. The program on the node writes the others, only if
the run is the current one. So a run that was submitted twice, by a controller killed meanwhile and by the next one,
begins once; and one that lost its connection ends itself when another has replaced it.
"""

import hashlib
import os
import secrets
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from nasflow.job.disk_full import wait_for_room
from nasflow.job.spec import JobSpec, job_dir
from nasflow.system.small_files import read_whole, write_aside
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.files.file_queue import JobRecords, waiting_for_room


@dataclass(frozen=True)
class Run:
    """One start of a job."""

    root: Path
    job_id: str
    token: str

    @classmethod
    def named(cls, root: Path, name: str) -> "Run":
        """Return the run of a root that has this name."""
        job_id, _, token = name.removeprefix(name_prefix(root)).rpartition("-")
        return cls(root, job_id, token)

    @property
    def name(self) -> str:
        """A name that is unique on the cluster."""
        return f"{name_prefix(self.root)}{self.job_id}-{self.token}"

    @property
    def arguments(self) -> list[str]:
        """The arguments of its program that name it."""
        return [str(self.root), self.job_id, self.token]

    @property
    def given(self) -> Path:
        """The mark that the cluster has accepted the run."""
        return self.file("given")

    def file(self, kind: str) -> Path:
        """Return the run's file of this kind."""
        return run_dir(self.root, self.job_id) / f"{self.token}.{kind}"

    def is_current(self) -> bool:
        """Whether no other run has replaced this one and no controller has asked it to end."""
        return _read(_current(self.root, self.job_id)) == self.token

    def spec(self) -> JobSpec:
        """Return the job, as its program reads it."""
        return JobSpec.model_validate_json((job_dir(self.root, self.job_id) / "job.json").read_bytes())

    def take_place(self, nodes: int = 1) -> int | None:
        """Take the first free place among the machines of a run, and return its number; None if all are taken.

        The first one, 0, begins the run.
        """
        return next((number for number in range(nodes) if _is_new(self._place(number))), None)

    def places_taken(self, nodes: int) -> int:
        """Return how many of the places of a run are taken."""
        there = {file.name for file in self._place(0).parent.iterdir()}
        return sum(self._place(number).name in there for number in range(nodes))

    def began(self) -> bool:
        """Whether its program has begun on a node."""
        return self._place(0).exists()

    def leave(self) -> None:
        """Let the run's other machines know that this one is taken back."""
        self.file("leaves").touch()

    def is_leaving(self) -> bool:
        """Whether one of the run's other machines is taken back."""
        file = self.file("leaves")
        return file.name in {each.name for each in file.parent.iterdir()}  # as a network file system has it now

    def _place(self, number: int) -> Path:
        return self.file(f"node-{number}" if number else "began")

    def end(self, state: JobState) -> None:
        """Record how the run ended."""
        wait_for_room(lambda: write_aside(self.file("exit.json"), state.model_dump_json()))

    def ended(self) -> JobState | None:
        """Return how the run ended; None if its program has not recorded that, or the record is damaged."""
        file = self.file("exit.json")
        list(file.parent.iterdir())  # makes a network file system forget that the file was missing
        return read_whole(file, JobState.model_validate_json)


class ClusterRecords(JobRecords):
    """The files that controllers write. Callers of every method must hold the lock."""

    def enqueue(self, spec: JobSpec) -> None:
        """Put a job at the end of the queue and forget its last run."""
        _current(self.root, spec.job_id).unlink(missing_ok=True)
        super().enqueue(spec)

    def taken(self) -> dict[str, str]:
        """Return the jobs that have left the queue and not ended, with their slots."""
        return {job_id: slot for slot in self.holders() for job_id in self.claimed(slot)}

    def take(self, slots: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Give the oldest waiting jobs to these slots, one each. Yield each job and its slot."""
        for (job_id, file), slot in zip(self.queued().items(), slots, strict=False):
            self.claims(slot).mkdir(parents=True, exist_ok=True)
            file.rename(self.claims(slot) / job_id)
            yield job_id, slot

    def new_run(self, job_id: str) -> Run:
        """Create a run and make it the job's current one."""
        run = Run(self.root, job_id, secrets.token_hex(4))
        run_dir(self.root, job_id).mkdir(exist_ok=True)
        self._write_current(job_id, run.token)
        return run

    def run(self, job_id: str) -> Run | None:
        """Return the job's current run; None if it has had none since it was submitted."""
        words = _read(_current(self.root, job_id)).split()
        return Run(self.root, job_id, words[0]) if words else None

    def unfinished(self) -> list[str]:
        """Return the jobs that have not ended."""
        return [*self.taken(), *self.queued()]

    def ask_to_cancel(self, job_id: str) -> None:
        """Cancel a job that waits here, or mark one that has left the queue, and tell its run to end."""
        queued = self.queued()
        if job_id in queued:
            queued[job_id].unlink()
            self.settle(job_id, JobState(status=JobStatus.CANCELLED))
        elif job_id in self.taken():
            self.cancel_mark(job_id).touch()
            if run := self.run(job_id):
                self.revoke(run)

    def revoke(self, run: Run) -> None:
        """Tell a run to end, on whatever node it is."""
        self._write_current(run.job_id, f"{run.token} ends")

    @waiting_for_room
    def _write_current(self, job_id: str, text: str) -> None:
        write_aside(_current(self.root, job_id), text)


def name_prefix(root: Path) -> str:
    """Return the common prefix of the names of all runs of a root."""
    return f"nasflow-{hashlib.sha256(os.fsencode(root)).hexdigest()[:10]}-"


def run_dir(root: Path, job_id: str) -> Path:
    """Return the folder of a job's runs."""
    return job_dir(root, job_id) / "run"


def _current(root: Path, job_id: str) -> Path:
    return run_dir(root, job_id) / "current"


def _is_new(mark: Path) -> bool:
    """Make an empty file, and return whether there was none."""
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


def _read(file: Path) -> str:
    try:
        return file.read_text(errors="replace")
    except FileNotFoundError:
        return ""
