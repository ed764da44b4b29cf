"""The SSH service's records on the controller's side, in the study's folder.

In addition to the files of the job queue (`files/file_queue.py`)::

    <root>/ssh/id                             identifies this study's folders on the hosts
               workers/<host>/claim/<job_id>  holds a word that is unique for each time that a job is given to a host,
                                              or to several: the claims on its node jobs hold the same word
    <root>/jobs/<job_id>/events.jsonl         a copy of the part received so far
                         job.log              a copy
    <root>/trials/<number>/                   copies of the newest checkpoints
"""

import logging
import secrets
import time
from pathlib import Path
from typing import NamedTuple

from nasflow.job.node_jobs import divide, is_node_job, job_of
from nasflow.job.spec import JobSpec, job_dir
from nasflow.system.small_files import read_whole, sync_folder, write_aside
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.files.file_queue import JobRecords
from nasflow.training_service.ssh.messages import Known

_LOG = logging.getLogger(__name__)
_IN_VAIN = 20.0  # seconds that a job waits on a host for what others use, while another host has a free slot
_WAITS = 30.0  # seconds in which a job on several hosts waits for them without a warning


class Offer(NamedTuple):
    """A slot that a host keeps free for a job on several hosts.

    Attributes:
        address: at which the other hosts reach this one.
        on_gpus: whether it is of GPUs; a job's ranks can't use both kinds.
    """

    address: str
    on_gpus: bool


class SshRecords(JobRecords):
    """The files of the SSH service. Callers of every method but `spec` must hold the lock.

    Attributes:
        invitations: by the id of a job on several hosts, the text that its process on the first host leaves for those
            on the others.
    """

    def __init__(self, root: Path):
        super().__init__(root, "ssh")
        self.invitations: dict[str, str] = {}
        self._offers: dict[str, Offer] = {}  # by host
        self._nodes: dict[str, int] = {}  # how many hosts a waiting job needs
        self._spare: dict[str, int] = {}  # free slots by host, after it took jobs
        self._waiting: dict[str, float] = {}  # since when a job waits on its host for what others use
        self._waits: dict[str, float] = {}  # since when it keeps slots free; infinity once that was said

    def study_id(self) -> str:
        """Return the id of this study's folders on the hosts."""
        file = self.dir / "id"
        if known := read_whole(file, _id):
            return known
        self.dir.mkdir(parents=True, exist_ok=True)
        write_aside(file, made := secrets.token_hex(4))
        sync_folder(self.dir)  # without it, what is on the hosts would not be found again
        return made

    def spec(self, job_id: str) -> JobSpec | None:
        """Return a job's spec; None if its file is damaged. Needs no lock."""
        return read_whole(job_dir(self.root, job_id) / "job.json", JobSpec.model_validate_json)

    def enqueue(self, spec: JobSpec) -> None:  # noqa: D102
        self._nodes[spec.job_id] = spec.nodes
        self._waits.pop(spec.job_id, None)
        super().enqueue(spec)

    def take(self, host: str, free: int, offer: Offer) -> list[str]:
        """Give the oldest waiting jobs to a host that has so many free slots, and return them.

        The oldest of those that need several hosts begins once as many keep a slot free for it. Jobs behind it take
        other slots meanwhile.

        Args:
            offer: what the host has for such a job.
        """
        self.withdraw(host)
        if free < 1:
            return []
        self.claims(host).mkdir(parents=True, exist_ok=True)
        taken: list[str] = []
        gathers = False
        for job_id, file in self.queued().items():
            if len(taken) + (host in self._offers) >= free:
                break
            if self._nodes_of(job_id) == 1:
                write_aside(file, secrets.token_hex(8))
                file.rename(self.claims(host) / job_id)
                taken.append(job_id)
            elif not gathers:
                gathers = True
                self._offers[host] = offer
                alike = [each for each, other in self._offers.items() if other.on_gpus == offer.on_gpus]
                if len(alike) >= self._nodes_of(job_id):
                    taken += self._begin_on_several(job_id, file, host, alike)
                else:
                    self._note_wait(job_id)
        self._spare[host] = free - len(taken) - (host in self._offers)
        return taken

    def note_invitation(self, job_id: str, text: str) -> None:
        """Keep what the job's process on the first host has left for those on others, or nothing."""
        if text:
            self.invitations[job_id] = text
        else:
            self.invitations.pop(job_id, None)

    def withdraw(self, host: str) -> None:
        """Keep no slot of a host free any more, nor count on any."""
        self._offers.pop(host, None)
        self._spare.pop(host, None)

    def known(self, host: str) -> dict[str, Known]:
        """Return the jobs that a host has, and how much of each is here. Node jobs of ended jobs are dropped."""
        found = {}
        for job_id in self.claimed(host):
            if is_node_job(job_id) and self._first(host, job_id) is None:
                self.drop_claim(host, job_id)
            else:
                found[job_id] = self._known(host, job_id)
        return found

    def hosts(self) -> list[str]:
        """Return the hosts that have or had jobs of this study."""
        return self.holders()

    def waits_in_vain(self, host: str, job_id: str, state: JobState | None) -> bool:
        """Whether a job has waited on a host for long for what others use, and could begin on another host.

        Args:
            state: its state there, as last reported.
        """
        if state is None or state.status is not JobStatus.PENDING or not state.reason:
            self._waiting.pop(job_id, None)
            return False
        waits = time.monotonic() - self._waiting.setdefault(job_id, time.monotonic())
        other = next((other for other, spare in self._spare.items() if other != host and spare > 0), None)
        if waits <= _IN_VAIN or other is None or self._nodes_of(job_id) != 1:
            return False
        self._spare[other] -= 1  # for this job; the host says soon what it has
        return True

    def end(self, host: str, job_id: str, state: JobState) -> None:
        """Record how a job ended on its host, and drop the claim. If only the host was to end it, it waits again."""
        self._waiting.pop(job_id, None)
        if state.status is JobStatus.CANCELLED and not self.cancel_mark(job_id).exists():
            _LOG.info("%s has waited in vain on host %s and goes to another", job_id, host)
            (self.claims(host) / job_id).rename(self._queue / f"{0:019d}.{job_id}")  # before all others
        else:
            self.settle(job_id, state)
            self.drop_claim(host, job_id)

    def lose(self, host: str, reason: str) -> list[str]:
        """Record a host's jobs as lost and drop its claims on them."""
        jobs = self.claimed(host)
        for job_id in jobs:
            if is_node_job(job_id):
                self.end_node_job(host, job_id, reason)
            else:
                self.end(host, job_id, JobState(status=JobStatus.LOST, slot=host, reason=reason))
        return jobs

    def end_node_job(self, host: str, job_id: str, reason: str) -> None:
        """Drop a host's claim on a node job; the job that it belongs to is lost, unless it has ended."""
        first = self._first(host, job_id)
        if first is not None:
            self.end(first, job_of(job_id), JobState(status=JobStatus.LOST, slot=first, reason=reason))
        self.drop_claim(host, job_id)

    def holder(self, job_id: str) -> str | None:
        """Return the host that has a job, if any."""
        return next((host for host in self.hosts() if (self.claims(host) / job_id).exists()), None)

    def unfinished(self) -> list[str]:
        """Return the jobs that wait or that a host has."""
        claimed = [job_id for host in self.hosts() for job_id in self.claimed(host) if not is_node_job(job_id)]
        return [job_id for job_id in (*claimed, *self.queued()) if self.outcome(job_id) is None]

    def _nodes_of(self, job_id: str) -> int:
        if job_id not in self._nodes:  # queued by an earlier controller
            spec = self.spec(job_id)
            self._nodes[job_id] = 1 if spec is None else spec.nodes
        return self._nodes[job_id]

    def _note_wait(self, job_id: str) -> None:
        """Warn once of a job that has waited for hosts for long."""
        now = time.monotonic()
        if now - self._waits.setdefault(job_id, now) > _WAITS:
            self._waits[job_id] = float("inf")
            _LOG.warning(
                "%s needs %d hosts (evaluator.parallel.nodes), and for %.0f s only these have had a free slot: %s",
                job_id,
                self._nodes_of(job_id),
                _WAITS,
                ", ".join(sorted(self._offers)),
            )

    def _begin_on_several(self, job_id: str, file: Path, own: str, hosts: list[str]) -> list[str]:
        """Give a waiting job to hosts that have offered a slot, and return what `own`, one of them, has of it."""
        spec = self.spec(job_id)
        if spec is None:  # which the host that takes it will say
            file.rename(self.claims(own) / job_id)
            return [job_id]
        hosts = hosts[: spec.nodes]
        word = secrets.token_hex(8)
        given = dict(zip(hosts, divide(self.root, spec, self._offers[hosts[0]].address), strict=True))
        for host in hosts[1:]:
            write_aside(self.claims(host) / given[host], word)
        write_aside(file, word)
        file.rename(self.claims(hosts[0]) / job_id)  # the last step, because only with it the others count
        self.invitations.pop(job_id, None)
        for host in hosts:
            self.withdraw(host)
        return [given[own]] if own in given else []

    def _first(self, host: str, job_id: str) -> str | None:
        """Return the host that has the job of a host's node job; None if it has ended, or was given to others since."""
        first = self.holder(job_of(job_id))
        if first is None or self._word(first, job_of(job_id)) != self._word(host, job_id):
            return None
        return first

    def _word(self, host: str, job_id: str) -> str:
        return (self.claims(host) / job_id).read_text(errors="replace")

    def _known(self, host: str, job_id: str) -> Known:
        folder = job_dir(self.root, job_id)
        events, log = (
            path.stat().st_size if path.exists() else 0 for path in (folder / "events.jsonl", folder / "job.log")
        )
        return Known(claim=self._word(host, job_id), events=events, log=log)


def _id(content: bytes) -> str:
    if not content.isalnum():
        raise ValueError("it is no id")
    return content.decode("ascii")
