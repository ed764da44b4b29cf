"""The training service that runs jobs on hosts over SSH."""

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from pathlib import Path

from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.ssh import SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.files.shared_root import RootHere
from nasflow.training_service.local.service import PRELOAD, RUNNER
from nasflow.training_service.ssh.host import SshHost
from nasflow.training_service.ssh.records import SshRecords
from nasflow.training_service.ssh.setup import Supplies

_LOG = logging.getLogger(__name__)
_POLL = 0.02  # seconds


class SshService(RootHere):
    """Runs jobs on several hosts, each of which takes the next waiting job when it has a free slot.

    On each host a LocalService runs the jobs. Their events, logs and checkpoints are copied here as they are written.
    So if a host is lost, its jobs continue elsewhere, and nothing is left to fetch at the end. A silent host keeps its
    jobs for `config.lost_after` seconds, and they continue meanwhile. When it answers again, the jobs that it should no
    longer run are ended.

    Args:
        config: the hosts.
        root: the folder of the study's jobs and checkpoints on this machine.
        base_dir: the folder of the user's code, which is shipped.
        runner: `module:function` that runs one `job.json`.
        preload: modules that a worker imports before its first job.
        secrets: what jobs get of the search's secrets.
    """

    def __init__(
        self,
        config: SshServiceConfig,
        root: Path,
        base_dir: Path,
        runner: str = RUNNER,
        preload: Sequence[str] = PRELOAD,
        *,
        secrets: JobSecrets = NO_SECRETS,
    ):
        self._config = config
        super().__init__(root)
        self._records = SshRecords(self._root)
        self._supplies = Supplies(config, base_dir, self._root, self._study)
        self._hosts = {
            host.name: SshHost(
                config, host, self._records, self._supplies, runner=runner, preload=list(preload), secrets=secrets
            )
            for host in config.hosts
        }

    def validate(self) -> None:
        """As in the contract; connects to the hosts and checks them."""
        super().validate()
        self._supplies.pack()
        self._in_order(SshHost.check)

    def prepare(self) -> None:  # noqa: D102
        with self._records.service_lock():
            for gone in set(self._records.hosts()) - self._hosts.keys():
                self._records.lose(gone, f"host {gone} is no longer among training_service.hosts")
        self._in_order(SshHost.start)
        for host in self._hosts.values():
            host.follow()

    def submit(self, spec: JobSpec) -> JobHandle:  # noqa: D102
        with self._records.service_lock():
            if self._look(spec.job_id).status in (JobStatus.LOST, JobStatus.CANCELLED):
                self._records.enqueue(spec)
        self._wake()
        return _handle(spec.job_id)

    def status(self, handle: JobHandle) -> JobState:  # noqa: D102
        with self._records.service_lock():
            return self._look(handle.job_id)

    def fetch(self, path: str) -> Path:
        """Copy `path` (a file or folder, relative to the root) here, even while a job writes it. Returns its path here.

        Raises:
            FileNotFoundError: the path does not exist.
            ServiceError: the path leads out of the root.
        """
        parts = Path(path).parts
        if parts[:1] == ("jobs",) and len(parts) > 1 and ".." not in parts:
            with self._records.service_lock():
                holder = self._records.holder(parts[1])
            if holder in self._hosts:
                self._hosts[holder].fetch(path)
        return super().fetch(path)

    def cancel(self, handle: JobHandle) -> None:
        """As in the contract, but a job on a silent host counts as cancelled and is ended when the host answers."""
        with self._records.service_lock():
            holder = self._ask_to_cancel(handle.job_id)
        if holder is None:
            return
        self._wake()
        while holder in self._hosts and self._hosts[holder].silence() < self._config.connect_timeout:
            with self._records.service_lock():
                if self._look(handle.job_id).status.finished or not self._records.cancel_mark(handle.job_id).exists():
                    return  # if the mark is gone, the job was submitted again meanwhile
            time.sleep(_POLL)
        with self._records.service_lock():
            if self._records.holder(handle.job_id) == holder:
                self._records.settle(handle.job_id, JobState(status=JobStatus.CANCELLED, slot=holder))
                self._records.drop_claim(holder, handle.job_id)

    def slots(self) -> Sequence[str]:  # noqa: D102
        return tuple(slot for host in self._hosts.values() for slot in host.slots)

    def cleanup(self) -> None:
        """As in the contract; also removes the study's files from all hosts that answer."""
        if not self._records.dir.exists():
            return
        for host in self._hosts.values():
            host.stop()
        with self._records.service_lock():
            for job_id in self._records.unfinished():
                self._ask_to_cancel(job_id)
        left = self._each(SshHost.cleanup)
        for name, error in left.items():
            _LOG.warning("host %s was not cleaned up: %s; `nasflow cleanup` tries again", name, error)
        with self._records.service_lock():
            for name in self._records.hosts():
                self._records.lose(name, "it was cleaned up while its host was silent")
            if not left:
                shutil.rmtree(self._records.dir)
        for host in self._hosts.values():
            host.close()

    def list(self) -> Sequence[JobHandle]:  # noqa: D102
        with self._records.service_lock():
            return [_handle(job_id) for job_id in self._records.unfinished()]

    # --- below, the lock is held -------------------------------------------------------------------------------------

    def _look(self, job_id: str) -> JobState:
        if outcome := self._records.outcome(job_id):
            return outcome
        if job_id in self._records.queued():
            return JobState(status=JobStatus.PENDING)
        if holder := self._records.holder(job_id):
            known = self._hosts[holder].states.get(job_id) if holder in self._hosts else None
            return known or JobState(status=JobStatus.RUNNING, slot=holder)
        return JobState(status=JobStatus.LOST, reason="the service does not know this job")

    def _ask_to_cancel(self, job_id: str) -> str | None:
        """Cancel a waiting job, or mark one that a host has and return that host's name."""
        if waiting := self._records.queued().get(job_id):
            waiting.unlink()
            self._records.settle(job_id, JobState(status=JobStatus.CANCELLED))
        elif holder := self._records.holder(job_id):
            self._records.cancel_mark(job_id).touch()
            return holder
        return None

    # --- the hosts, without the lock ---------------------------------------------------------------------------------

    def _study(self) -> str:
        """Return the name of this study's folder on the hosts."""
        with self._records.service_lock():
            return f"{self._root.name}-{self._records.study_id()}"

    def _wake(self) -> None:
        for host in self._hosts.values():
            host.follow()
            host.wake()

    def _in_order(self, do: Callable[[SshHost], None]) -> None:
        """Call `do` for all hosts in parallel.

        Raises:
            ServiceError: it failed for one host, or for all of them if `hosts_required` is `any`.
        """
        failed = self._each(do)
        if failed and (self._config.hosts_required == "all" or len(failed) == len(self._hosts)):
            raise ServiceError("; ".join(str(error) for error in failed.values()))
        for error in failed.values():
            _LOG.warning("%s; the search starts without this host", error)

    def _each(self, do: Callable[[SshHost], None]) -> dict[str, ServiceError]:
        """Call `do` for all hosts in parallel and return the errors of those for which it failed."""

        def attempt(host: SshHost) -> tuple[str, ServiceError] | None:
            try:
                do(host)
            except ServiceError as error:
                return host.name, error
            return None

        with ThreadPoolExecutor(max(1, len(self._hosts))) as pool:
            tries = [pool.submit(copy_context().run, attempt, host) for host in self._hosts.values()]
            return dict(failure for each in tries if (failure := each.result()) is not None)


def _handle(job_id: str) -> JobHandle:
    return JobHandle(service="ssh", job_id=job_id)
