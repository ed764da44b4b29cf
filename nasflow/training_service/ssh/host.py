"""One host of the SSH service: polls its agent, and gives up its jobs when it is silent for too long."""

import json
import logging
import math
import threading
import time
from collections.abc import Iterable, Sequence
from contextvars import copy_context
from pathlib import Path, PurePosixPath

from pydantic import TypeAdapter

from nasflow.config.job_secrets import JobSecrets
from nasflow.config.services.ssh import SshHostConfig, SshServiceConfig
from nasflow.errors import ServiceError
from nasflow.job.disk_full import is_full
from nasflow.job.node_jobs import is_node_job, job_of, why_ended
from nasflow.job.spec import stop_mark
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.files.incoming import KEPT
from nasflow.training_service.ssh.agent_client import AgentClient
from nasflow.training_service.ssh.connect.connection import SshConnection
from nasflow.training_service.ssh.connect.errors import Refused, Unreachable
from nasflow.training_service.ssh.connect.refusals import Refusals
from nasflow.training_service.ssh.messages import JobNews, Known, Listing, News, Opening, Poll, RemoteFile, Submission
from nasflow.training_service.ssh.mirror import Mirror, trial_folders
from nasflow.training_service.ssh.records import Offer, SshRecords
from nasflow.training_service.ssh.setup import Place, Supplies

_LOG = logging.getLogger(__name__)
_BUSY_POLL, _IDLE_POLL = 0.1, 1.0  # seconds
_BACK_OFF = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)  # seconds before each retry to reach a host; the last value repeats
_KEPT_AWAKE_EVERY = 15.0  # seconds; an agent ends that hears nothing for `agent.SILENCE`
_AWAKE_WITHIN = 100.0  # seconds; its answer may wait behind much of the file, on a slow line
_CLEAN_UP_WITHIN = 60.0  # seconds; includes the grace period of jobs
_FILES = TypeAdapter(list[RemoteFile])


class SshHost:
    """A host, its agent, and the thread that polls it.

    Args:
        config: the service's config.
        host: this host's config.
        records: the records of the study's jobs.
        supplies: the code to ship.
        runner: `module:function` that runs one `job.json`.
        preload: modules that a worker imports before its first job.
        secrets: what jobs get of the search's secrets; sent when the agent is opened.
    """

    def __init__(
        self,
        config: SshServiceConfig,
        host: SshHostConfig,
        records: SshRecords,
        supplies: Supplies,
        *,
        runner: str,
        preload: list[str],
        secrets: JobSecrets,
    ):
        self.name = host.name
        self.slots: list[str] = []
        self.states: dict[str, JobState] = {}  # of its jobs, as last reported
        self._trials: dict[str, list[int]] = {}  # of its jobs
        self._config = config
        self._host = host
        self._records = records
        self._supplies = supplies
        self._secrets = secrets
        self._opening = Opening(
            runner=runner,
            preload=preload,
            reuse=config.reuse,
            idle_timeout=config.idle_timeout,
            abandoned_after=config.abandoned_after,
            pass_env=config.pass_env,
            devices_per_job=config.devices_per_job,
            **host.model_dump(include={"slots", "gpu_indices", "max_trials_per_gpu", "use_active_gpu"}),
        )
        self._connection = SshConnection(host, config)
        self._refusals = Refusals()
        self._agent: AgentClient | None = None
        self._place: Place | None = None
        self._address = ""  # at which the other hosts reach it
        self._io = threading.RLock()  # one exchange with the host at a time
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._answered = time.monotonic()
        self._rests_until = 0.0  # it takes no jobs until then
        self._warned = False  # of files that were not asked for

    # --- for the service -------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Connect and check whether the host can run jobs. Leaves nothing on the host.

        Raises:
            ServiceError: the host can't run jobs as configured.
            Unreachable: it does not answer.
        """
        with self._io:
            self._connection.connect()
            self._supplies.check(self._connection, self._host)

    def start(self) -> None:
        """Connect, ship what is missing, start the workers, and begin polling.

        Raises:
            ServiceError: the host can't run jobs as configured.
            Unreachable: it does not answer.
        """
        with self._io:
            self._reach()
        self.follow()

    def follow(self) -> None:
        """Begin polling, whether or not the host answers yet."""
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self._answered = time.monotonic()
            run = copy_context().run  # its warnings go to the log of its search
            self._thread = threading.Thread(target=run, args=(self._keep_asking,), name=f"ssh {self.name}", daemon=True)
            self._thread.start()

    def wake(self) -> None:
        """Poll at once, because there may be something to do."""
        self._wake.set()

    def silence(self) -> float:
        """Return the seconds since the host's last answer."""
        return time.monotonic() - self._answered

    def fetch(self, path: str) -> None:
        """Copy the current files at `path`, relative to the root, from the host.

        Raises:
            Unreachable: the host does not answer, not even on a new connection.
        """
        with self._io:
            try:
                self._fetch(path)
            except Unreachable:
                self._drop()
                self._fetch(path)

    def stop(self) -> None:
        """Stop polling."""
        self._stop.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join()

    def close(self) -> None:
        """End the connection."""
        with self._io:
            self._drop()

    def cleanup(self) -> None:
        """End everything on the host, copy what is new, and remove the study's files. Call `stop` first.

        Raises:
            Unreachable: the host does not answer; nothing was changed there.
        """
        with self._io:
            self._reach()
            self._call("cleanup", timeout=_CLEAN_UP_WITHIN)
            while self._ask():
                pass
            self._call("remove", timeout=_CLEAN_UP_WITHIN)
            if self._agent is not None:
                self._agent.leave()
            self._drop()
            self._place = None

    # --- the exchange ----------------------------------------------------------------------------------------------

    def _keep_asking(self) -> None:
        failures, since, said = 0, 0.0, ""
        while not self._stop.is_set():
            try:
                with self._io:
                    if self._agent is None:
                        longest = self._config.lost_after / 4 if self._has_jobs() else math.inf
                        self._refusals.spaced(self._reach, longest)
                    self._ask()
                    busy = self._has_jobs()
                failures, wait = 0, _BUSY_POLL if busy else _IDLE_POLL
            except Exception as error:
                if failures == 0 or is_full(error):  # a full disk here is no fault of the host
                    since = time.monotonic()
                lasting = isinstance(error, ServiceError) and not isinstance(error, Unreachable)
                if (failures == 0 or (lasting and str(error) != said)) and not isinstance(error, Refused):
                    unforeseen = not isinstance(error, ServiceError | OSError)
                    _LOG.warning("host %s: %s; trying again", self.name, error, exc_info=unforeseen)
                with self._io:
                    self._drop()
                with self._records.lock():
                    self._records.withdraw(self.name)
                self._lose_jobs(str(error), failing=time.monotonic() - since)
                wait = _BACK_OFF[min(failures, len(_BACK_OFF) - 1)]
                failures, said = failures + 1, str(error)
            self._wake.wait(wait)
            self._wake.clear()

    def _has_jobs(self) -> bool:
        with self._records.lock():
            return bool(self._records.known(self.name))

    def _ask(self) -> bool:
        """Get news of the host's jobs, give it the jobs that it can take, and return whether there is more news."""
        with self._records.lock():
            known = self._records.known(self.name)
            cancelled = [job_id for job_id in known if self._records.cancel_mark(job_id).exists()]
            vain = [each for each in known if self._records.waits_in_vain(self.name, each, self.states.get(each))]
            left = self._records.invitations
            invitations = {each: left[job_of(each)] for each in known if is_node_job(each) and job_of(each) in left}
        stopped = self._to_stop([job_id for job_id in known if not is_node_job(job_id)])
        answer = self._call("poll", Poll(jobs=known, cancel=[*cancelled, *vain], stop=stopped, invitations=invitations))
        for trial in stopped:
            stop_mark(self._records.root, trial).unlink(missing_ok=True)
        news = News.model_validate_json(answer)
        more, free = False, news.free
        for job_id in known:
            about = news.jobs.get(job_id)
            if about is not None:
                more |= self._take(job_id, known[job_id], about)
            elif job_id in cancelled:
                self._settle(job_id, JobState(status=JobStatus.CANCELLED, slot=self.name))
            elif not self._stop.is_set():
                self._submit(job_id, known[job_id])
                free -= 1
        if not self._stop.is_set():
            with self._records.lock():
                on_gpus = any(slot.rpartition("/")[2].startswith("gpu-") for slot in self.slots)
                free = free if time.monotonic() >= self._rests_until else 0
                taken = self._records.take(self.name, free, Offer(self._address, on_gpus))
                mine = self._records.known(self.name)
                self.states |= {job_id: JobState(status=JobStatus.PENDING) for job_id in taken}
            for job_id in taken:
                self._submit(job_id, mine[job_id])
        return more

    def _take(self, job_id: str, known: Known, news: JobNews) -> bool:
        """Copy a job's files, then its events, then its end, and return whether there is more."""
        if is_node_job(job_id):
            return self._take_node_job(job_id, known, news)
        self._records.note_invitation(job_id, news.invitation)
        mirror = self._mirror()
        spec = self._records.spec(job_id) if news.checkpoints else None
        checkpoints = self._wanted(news.checkpoints, trial_folders(spec) if spec else [])
        with self._connection.sftp() as sftp:
            if not mirror.download(sftp, [*checkpoints, *self._wanted(news.files, [f"jobs/{job_id}"])]):
                return True  # the next poll lists the newer ones
        ended = news.state.status.finished and not news.more
        with self._records.lock():
            if self._records.known(self.name).get(job_id) != known:
                return True  # another thread was faster
            mirror.append(job_id, news)
            slot = f"{self.name}/{news.state.slot}" if news.state.slot else self.name
            state = news.state.model_copy(update={"slot": slot})
            if ended:
                self.states.pop(job_id, None)
                self._records.end(self.name, job_id, state)
            elif not state.status.finished:  # a finished job's events are complete here
                self.states[job_id] = state
        mirror.drop_old(checkpoints)
        return news.more

    def _take_node_job(self, job_id: str, known: Known, news: JobNews) -> bool:
        """Copy the log of a node job, and return whether there is more. If it has ended, so does its job."""
        with self._records.lock():
            if self._records.known(self.name).get(job_id) != known:
                return True
            self._mirror().append(job_id, news)
            if news.state.status.finished and not news.more:
                why = why_ended(self._records.root, job_id)
                self._records.end_node_job(self.name, job_id, f"its process on host {self.name} has ended: {why}")
        return news.more

    def _wanted(self, files: Sequence[RemoteFile], folders: Sequence[str]) -> list[RemoteFile]:
        """Return the files in these folders that may be copied here, and warn once of others."""
        wanted = self._mirror().wanted(files, folders)
        if len(wanted) < len(files) and not self._warned:
            self._warned = True
            other = next(file.path for file in files if file not in wanted)
            _LOG.warning("host %s sends files that are not of its job, such as %r; they are skipped", self.name, other)
        return wanted

    def _to_stop(self, jobs: Iterable[str]) -> list[int]:
        """Return the trials of some jobs that are marked to be stopped."""
        self._trials = {job: self._trials.get(job) or self._members(job) for job in jobs}
        trials = (trial for members in self._trials.values() for trial in members)
        return [trial for trial in trials if stop_mark(self._records.root, trial).exists()]

    def _members(self, job_id: str) -> list[int]:
        spec = self._records.spec(job_id)
        return [member.trial for member in spec.members] if spec else []

    def _settle(self, job_id: str, state: JobState) -> None:
        with self._records.lock():
            self._records.end(self.name, job_id, state)

    def _submit(self, job_id: str, known: Known) -> None:
        spec = self._records.spec(job_id)
        if spec is None:
            self._settle(job_id, JobState(status=JobStatus.LOST, slot=self.name, reason="its job.json is damaged"))
            return
        there = self._list(trial_folders(spec))
        with self._connection.sftp() as sftp:
            uploads = self._mirror().upload(sftp, [member.trial for member in spec.members], there)
        submission = Submission(
            spec=spec.model_copy(update={"base_dir": Path(self._reached.code)}).model_dump_json(),
            known=known,
            uploads=uploads,
        )
        self._call("submit", submission)

    def _fetch(self, path: str) -> None:
        self._reach()
        complete = False
        while not complete:
            listed = [file for file in self._list([path]) if PurePosixPath(file.path).name not in KEPT]
            itself = [file for file in listed if file.path == path]
            files = self._wanted(listed, [str(PurePosixPath(path).parent)] if itself else [path])
            with self._connection.sftp() as sftp:
                complete = self._mirror().download(sftp, files)

    def _lose_jobs(self, why: str, failing: float) -> None:
        """Give up the host's jobs if it is silent, or answers but has failed for `failing` seconds, for too long."""
        what = f"has been silent for {self.silence():.0f} s"
        if self.silence() <= self._config.lost_after:
            if failing <= self._config.lost_after:
                return
            what = f"answers, but has failed for {failing:.0f} s"
            self._rests_until = time.monotonic() + self._config.lost_after  # else it would take the same jobs again
        with self._records.lock():
            lost = self._records.lose(self.name, f"host {self.name} {what}: {why}")
        if lost:
            _LOG.warning("host %s is considered lost, with jobs %s", self.name, ", ".join(lost))

    def _reach(self) -> None:
        """Make sure that an agent on the host answers."""
        if self._agent is not None:
            return
        self._connection.connect()
        try:
            if self._place is None:
                self._place = self._supplies.ship(self._connection, self._host)
            opening = self._opening.model_copy(update={"secrets": dict(self._secrets.texts())})
            agent = AgentClient(self._connection, self._place.agent, self.name, self._config.connect_timeout)
            self.slots = [f"{self.name}/{slot}" for slot in json.loads(agent.call("open", opening, _CLEAN_UP_WITHIN))]
            self._address = self._host.address or self._connection.address
        except BaseException:
            self._connection.close()
            raise
        self._agent = agent
        self._refusals.end()
        self._answered = time.monotonic()

    def _call(self, name: str, message: Poll | Submission | Listing | None = None, timeout: float | None = None) -> str:
        if self._agent is None:
            raise Unreachable(f"{self.name} is not connected")
        result = self._agent.call(name, message, timeout)
        self._answered = time.monotonic()
        return result

    def _list(self, paths: list[str]) -> list[RemoteFile]:
        return _FILES.validate_json(self._call("list", Listing(paths=paths)))

    def _drop(self) -> None:
        if self._agent is not None:
            self._agent.close()
        self._agent = None
        self._connection.close()

    def _mirror(self) -> Mirror:
        return Mirror(self._records.root, PurePosixPath(self._reached.root), self._keep_awake)

    def _keep_awake(self) -> None:
        """Let the agent know, while a long file is on its way, that the connection is not dead."""
        if self.silence() > _KEPT_AWAKE_EVERY:
            self._call("list", Listing(paths=[]), _AWAKE_WITHIN)

    @property
    def _reached(self) -> Place:
        if self._place is None:
            raise Unreachable(f"{self.name} was never reached")
        return self._place
