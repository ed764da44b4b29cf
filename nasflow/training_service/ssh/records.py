"""The SSH service's records on the controller's side, in the study's folder.

In addition to the files of the job queue (`files/file_queue.py`)::

    <root>/ssh/id                             identifies this study's folders on the hosts
               workers/<host>/claim/<job_id>  holds a word that is unique for each time that a job is given to a host
    <root>/jobs/<job_id>/events.jsonl         a copy of the part received so far
                         job.log              a copy
    <root>/trials/<number>/                   copies of the newest checkpoints
"""

import secrets
from pathlib import Path

from nasflow.job.spec import job_dir
from nasflow.system.small_files import read_whole, sync_folder, write_aside
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.files.file_queue import JobRecords
from nasflow.training_service.ssh.messages import Known


class SshRecords(JobRecords):
    """The files of the SSH service. Callers of every method must hold the lock."""

    def __init__(self, root: Path):
        super().__init__(root, "ssh")

    def study_id(self) -> str:
        """Return the id of this study's folders on the hosts."""
        file = self.dir / "id"
        if known := read_whole(file, _id):
            return known
        self.dir.mkdir(parents=True, exist_ok=True)
        write_aside(file, made := secrets.token_hex(4))
        sync_folder(self.dir)  # without it, what is on the hosts would not be found again
        return made

    def take(self, host: str) -> str | None:
        """Give the oldest waiting job to a host."""
        folder = self.claims(host)
        folder.mkdir(parents=True, exist_ok=True)
        for job_id, file in self.queued().items():
            write_aside(file, secrets.token_hex(8))
            file.rename(folder / job_id)
            return job_id
        return None

    def known(self, host: str) -> dict[str, Known]:
        """Return the jobs that a host has, and how much of each is here."""
        return {job_id: self._known(host, job_id) for job_id in self.claimed(host)}

    def hosts(self) -> list[str]:
        """Return the hosts that have or had jobs of this study."""
        return self.holders()

    def lose(self, host: str, reason: str) -> list[str]:
        """Record a host's jobs as lost and drop its claims on them."""
        jobs = self.claimed(host)
        for job_id in jobs:
            self.settle(job_id, JobState(status=JobStatus.LOST, slot=host, reason=reason))
            self.drop_claim(host, job_id)
        return jobs

    def holder(self, job_id: str) -> str | None:
        """Return the host that has a job, if any."""
        return next((host for host in self.hosts() if (self.claims(host) / job_id).exists()), None)

    def unfinished(self) -> list[str]:
        """Return the jobs that wait or that a host has."""
        claimed = [job_id for host in self.hosts() for job_id in self.claimed(host)]
        return [job_id for job_id in (*claimed, *self.queued()) if self.outcome(job_id) is None]

    def _known(self, host: str, job_id: str) -> Known:
        folder = job_dir(self.root, job_id)
        events, log = (
            path.stat().st_size if path.exists() else 0 for path in (folder / "events.jsonl", folder / "job.log")
        )
        return Known(claim=(self.claims(host) / job_id).read_text(errors="replace"), events=events, log=log)


def _id(content: bytes) -> str:
    if not content.isalnum():
        raise ValueError("it is no id")
    return content.decode("ascii")
