"""The records of which service has which job, in the study's folder.

In addition to the files of the job queue (`files/file_queue.py`)::

    <root>/several/specs/<job_id>.json                the JobSpec; the service writes another one for its nodes
                   workers/<service>/claim/<job_id>   the service was chosen for the job; in it, when it has taken it
    <root>/several-speeds.json                        each service's speed, by finished jobs; outlives `cleanup`

All services share the root, and with it the checkpoints, so a job can go on at another service.
"""

import time
from pathlib import Path

from pydantic import BaseModel, NonNegativeFloat

from nasflow.job.spec import JobSpec, job_dir
from nasflow.system.small_files import read_whole, write_aside
from nasflow.training_service.base import JobState
from nasflow.training_service.files.file_queue import JobRecords, waiting_for_room

_WEIGHT_OF_OLDER = 0.7


class _Speed(BaseModel):
    epochs: NonNegativeFloat = 0.0
    seconds: NonNegativeFloat = 0.0


class _Speeds(BaseModel):
    of: dict[str, _Speed] = {}


class SeveralRecords(JobRecords):
    """The files of several services at once. Callers of every method must hold the lock."""

    def __init__(self, root: Path):
        super().__init__(root, "several")
        self._speeds = root / "several-speeds.json"

    @waiting_for_room
    def enqueue(self, spec: JobSpec) -> None:
        """Put a job at the end of the queue, and keep its spec."""
        file = self._spec_file(spec.job_id)
        file.parent.mkdir(parents=True, exist_ok=True)
        write_aside(file, spec.model_dump_json())
        super().enqueue(spec)

    def spec(self, job_id: str) -> JobSpec:
        """Return a job as it was submitted here."""
        kept, queued = self._spec_file(job_id), job_dir(self.root, job_id) / "job.json"
        file = kept if kept.exists() else queued  # an earlier version of nasflow has kept none
        return JobSpec.model_validate_json(file.read_bytes())

    def take(self, service: str) -> str | None:
        """Choose a service for the oldest waiting job; None if none waits."""
        self.claims(service).mkdir(parents=True, exist_ok=True)
        return self.claim(service)

    def chosen(self, job_id: str) -> str | None:
        """Return the service that was chosen for a job that has not ended; None if it waits or is unknown."""
        return next((name for name in self.holders() if (self.claims(name) / job_id).exists()), None)

    def given(self, service: str, job_id: str) -> float | None:
        """Return when the service took the job, by the clock of this machine; None if it may not have it yet."""
        try:
            return float((self.claims(service) / job_id).read_text(errors="replace"))
        except ValueError:  # the file is empty, or of an earlier version of nasflow: to give a job again is harmless
            return None

    @waiting_for_room
    def note_given(self, service: str, job_id: str) -> None:
        """Record that the service has taken the job."""
        write_aside(self.claims(service) / job_id, str(time.time()))

    @waiting_for_room
    def note_end(self, service: str, job_id: str, state: JobState) -> None:
        """Record how a job ended, over the service's own record, and drop the choice."""
        write_aside(job_dir(self.root, job_id) / "exit.json", state.model_dump_json())
        self.cancel_mark(job_id).unlink(missing_ok=True)
        self.drop_claim(service, job_id)

    def speeds(self) -> dict[str, float]:
        """Return the measured services with their speed, in epochs of a trial a second and job."""
        return {name: each.epochs / each.seconds for name, each in self._read().of.items() if each.seconds > 0}

    @waiting_for_room
    def note_speed(self, service: str, epochs: int, seconds: float) -> None:
        """Record how many epochs a job has trained, those of all its trials, in how many seconds."""
        speeds = self._read()
        old = speeds.of.get(service, _Speed())
        new = _Speed(
            epochs=old.epochs * _WEIGHT_OF_OLDER + epochs,
            seconds=old.seconds * _WEIGHT_OF_OLDER + max(seconds, 1e-3),
        )
        write_aside(self._speeds, _Speeds(of={**speeds.of, service: new}).model_dump_json())

    def _spec_file(self, job_id: str) -> Path:
        return self.dir / "specs" / f"{job_id}.json"

    def _read(self) -> _Speeds:
        return read_whole(self._speeds, _Speeds.model_validate_json) or _Speeds()
