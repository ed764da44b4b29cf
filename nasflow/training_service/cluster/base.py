"""Base class of services for clusters that have a scheduler. `storage` says where their nodes find files."""

import builtins
import logging
import shutil
import time
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from nasflow.config.services.storage import StorageConfig
from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.cluster.gone import ACTS_WITHIN, LOOK, await_gone
from nasflow.training_service.cluster.long_waits import LongWaits
from nasflow.training_service.cluster.runs import ClusterRecords, Run
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.cluster.stillborn import StillbornJobs
from nasflow.training_service.cluster.storage.base import RunOptions, StorageClosedError, StorageSilentError
from nasflow.training_service.cluster.storage.make import make_storage
from nasflow.training_service.files.shared_root import RootHere

_LOG = logging.getLogger(__name__)

_POLL = 0.05  # seconds between two checks of files
_LAST_WORD = 5.0  # seconds until a node's file is visible here; the longest delay of common network file systems
_REST = 5.0  # of the time of a look at all jobs, until the next one


class ClusterSilentError(ServiceError):
    """The cluster did not answer. Whether it carried out the request is unknown."""


class ClusterFullError(ClusterSilentError):
    """The cluster takes no more jobs for now: a limit of their number is reached, or a part of it is away."""


class ClusterService(RootHere):
    """Submits jobs to a cluster, at most `max_jobs` at a time, and follows them by their files.

    Submitted jobs need no controller. The others wait here until the next call of any controller submits them. A run's
    own program (`node_program`) records how it ended; for runs in which it could not, the cluster is queried every
    `poll_seconds`.

    To add a cluster, implement `validate`, `_give`, `_look` and `_withdraw`. What `_give` starts on a node is
    `_storage.python` with the arguments `_program`, with `_secret_environment` passed by the cluster's means for
    secrets, and with `_storage.import_path` and `_storage.log`, so that it works with every storage.
    `nasflow.training_service.make` calls the class as `(config, root, runner, secrets=...)`.

    Args:
        root: the folder of the study's jobs and checkpoints.
        max_jobs: the most jobs submitted to the cluster at a time.
        poll_seconds: seconds between two queries of the cluster.
        abandoned_after: seconds without a call of a controller after which a job ends itself.
        runner: `module:function` that runs one `job.json` and returns an exit code.
        storage: where files are.
    """

    kind: ClassVar[str]
    """The service's name, as in its config."""
    passes_secrets: ClassVar[bool] = False
    """Whether it has means to give a job environment variables that nobody else can see."""

    def __init__(
        self,
        root: Path,
        max_jobs: int,
        poll_seconds: float,
        abandoned_after: float,
        runner: str,
        *,
        storage: StorageConfig | None = None,
    ):
        super().__init__(root)
        self._records = ClusterRecords(self._root, self.kind)
        self._run_options = RunOptions(runner, abandoned_after, self._records.controller)
        self._storage = make_storage(storage, self._root, self._run_options)
        self._slots = tuple(f"{self.kind}-{i}" for i in range(max_jobs))
        self._poll_seconds = poll_seconds
        self._seen: Mapping[str, Seen] = {}
        self._seen_at = self._next_look = self._next_tend = float("-inf")
        self._taken, self._waiting = dict[str, str](), set[str]()  # jobs with slots, and without, when it last tended
        self._silent = False
        self._known_since, self._ended_since = dict[str, float](), dict[str, float]()  # by the name of the run
        self._stillborn, self._long_waits = StillbornJobs(), LongWaits()
        self._full = ""  # what the cluster said when it last took no more jobs

    # --- what a cluster implements -------------------------------------------------------------------------------

    @abstractmethod
    def _give(self, run: Run) -> None:
        """Submit a run: the cluster starts `node_program` for it once, and never restarts it by itself.

        Raises:
            ClusterSilentError: no answer.
            ClusterFullError: the cluster would take the job later.
            ServiceError: the cluster refuses the job.
        """

    @abstractmethod
    def _look(self) -> Mapping[str, Seen]:
        """Return the runs of this root that the cluster knows, by name.

        Raises:
            ClusterSilentError: no answer.
        """

    @abstractmethod
    def _withdraw(self, names: Sequence[str]) -> None:
        """End runs by force, or keep them from starting; unknown ones are ignored.

        Raises:
            ClusterSilentError: no answer.
        """

    def _own_log(self, run: Run) -> str:
        """Return what the cluster itself has of a run's output; empty if it keeps none, as here, or can't give it."""
        return ""

    def _where(self, run: Run) -> str:
        """Return the name of a run on the cluster, or the address of its page."""
        return run.name

    # --- the contract --------------------------------------------------------------------------------------------

    def validate(self) -> None:  # noqa: D102
        super().validate()
        if not self.passes_secrets and (keys := self._storage.unreachable_secrets()):
            raise ServiceError(
                f"training_service.{keys[0]}: {self.kind} has no means to give jobs a secret that nobody else sees; "
                "write {env: NAME}, and set that variable on the nodes"
            )
        self._storage.validate()

    def prepare(self) -> None:  # noqa: D102
        with self._records.service_lock():
            self._tend(fresh=True)

    def submit(self, spec: JobSpec) -> JobHandle:  # noqa: D102
        with self._records.service_lock():
            self._tend_if_due()
            if self._state(spec.job_id).status in (JobStatus.LOST, JobStatus.CANCELLED):
                self._records.enqueue(self._storage.as_seen_there(spec))
                self._waiting.add(spec.job_id)
                self._hand_over_what_waits()
        return self._handle(spec.job_id)

    def status(self, handle: JobHandle) -> JobState:  # noqa: D102
        with self._records.service_lock():
            self._tend_if_due()
            return self._state(handle.job_id)

    def events(self, handle: JobHandle, offset: int = 0) -> tuple[builtins.list[str], int]:  # noqa: D102
        self._bring_news()
        return super().events(handle, offset)

    def log_tail(self, handle: JobHandle, lines: int = 20) -> str:  # noqa: D102
        self._bring_news()
        return super().log_tail(handle, lines)

    def fetch(self, path: str) -> Path:  # noqa: D102
        self._bring_news()
        return super().fetch(path)

    def cancel(self, handle: JobHandle) -> None:  # noqa: D102
        with self._records.service_lock():
            self._tend(submit=False)
            self._records.ask_to_cancel(handle.job_id)
        self._await_cancelled(handle.job_id)

    def list(self) -> Sequence[JobHandle]:  # noqa: D102
        with self._records.service_lock():
            self._tend(submit=False)
            return [self._handle(job_id) for job_id in self._records.unfinished()]

    def slots(self) -> Sequence[str]:  # noqa: D102
        return self._slots

    def cleanup(self) -> None:  # noqa: D102
        with self._records.service_lock():
            if why := self._storage.why_closed():
                self._await_gone()  # by force, for jobs can't be told to end
                raise StorageClosedError(
                    f"{why}; its jobs are ended, but what is stored of them stays until this is mended"
                )
            self._tend(submit=False)
            jobs = self._records.unfinished()
            for job_id in jobs:  # all at once, so that their grace periods overlap
                self._records.ask_to_cancel(job_id)
        for job_id in jobs:
            self._await_cancelled(job_id)
        with self._records.service_lock():
            self._await_gone()
            if self._storage.clean() and self._records.dir.exists():
                shutil.rmtree(self._records.dir)

    def _program(self, run: Run) -> Sequence[str]:
        """Return the arguments of the Python interpreter that runs a run's own program."""
        return self._storage.program(run)

    def _secret_environment(self) -> Mapping[str, str]:
        """Return environment variables of a run's own program, whose values are secret."""
        return self._storage.secrets() if self.passes_secrets else {}

    # --- below, the lock is held ---------------------------------------------------------------------------------

    def _tend_if_due(self) -> None:
        """Tend, but only for a small part of the time."""
        self._records.note_call()
        if time.monotonic() >= self._next_tend:
            self._tend()

    def _tend(self, *, fresh: bool = False, submit: bool = True) -> None:
        """Update the records from the runs' files and the cluster, and submit waiting jobs.

        Args:
            fresh: query the cluster now.
            submit: false for what must work while the cluster refuses jobs.
        """
        self._records.note_call()
        looked = self._refresh() if fresh or time.monotonic() >= self._next_look else False
        begin = time.monotonic()
        self._taken, self._waiting = self._records.taken(), set(self._records.queued())
        runs = {job_id: (slot, self._records.run(job_id)) for job_id, slot in self._taken.items()}
        self._next_tend = time.monotonic() + _REST * (time.monotonic() - begin)
        self._storage.collect([run for _, run in runs.values() if run is not None])
        for job_id, (slot, run) in runs.items():
            if run is None or not run.given.exists():
                if looked and not self._silent:  # a controller was interrupted before it submitted the run
                    self._hand_over(job_id, slot, run, submit=submit)
            elif state := self._end(run):
                self._settle(job_id, slot, state, run)
        if looked:
            self._long_waits.look([run for _, run in runs.values() if run is not None], self._seen)
        if submit:
            self._hand_over_what_waits()

    def _refresh(self) -> bool:
        """Query the cluster and return whether it answered."""
        begin = time.monotonic()
        try:
            self._seen, self._seen_at, self._silent = self._look(), begin, False
        except ClusterSilentError as error:
            self._say_silent(error)
        end = time.monotonic()
        self._next_look = end + max(self._poll_seconds, 5 * (end - begin))
        return not self._silent

    def _say_silent(self, error: ServiceError) -> None:
        if not self._silent and str(error) != self._full:
            _LOG.warning("%s; submitted jobs continue, others wait", error)
        self._full = str(error) if isinstance(error, ClusterFullError) else ""  # it is asked again at each look
        self._silent = True

    def _hand_over_what_waits(self) -> None:
        if self._silent or not self._waiting:
            return
        busy = set(self._taken.values())
        if not (free := [slot for slot in self._slots if slot not in busy]):
            return
        unclaimed = (slot for slot in free if not self._records.claimed(slot))  # by another controller meanwhile
        for job_id, slot in self._records.take(unclaimed):
            self._waiting.discard(job_id)
            self._taken[job_id] = slot
            self._hand_over(job_id, slot, None, submit=True)
            if self._silent:  # each of the others would wait as long for an answer
                return

    def _hand_over(self, job_id: str, slot: str, run: Run | None, *, submit: bool) -> None:
        """Submit a job unless the cluster already has its `run`, which may have been submitted before."""
        if run is None or run.name not in self._seen:
            if self._records.cancel_mark(job_id).exists():
                self._settle(job_id, slot, JobState(status=JobStatus.CANCELLED), run)
                return
            if not submit:
                return
            self._stillborn.check()
            run = run or self._records.new_run(job_id)
            try:
                self._storage.give(run)
                self._give(run)
            except (ClusterSilentError, StorageSilentError) as error:
                self._say_silent(error)
                return
        run.given.touch()

    def _end(self, run: Run) -> JobState | None:
        """Return how a run ended; None if it may still run."""
        last_word = run.ended()
        if last_word is not None and last_word.status is JobStatus.EXITED:
            self._stillborn.clear()
            return last_word
        cancelled = self._records.cancel_mark(run.job_id).exists()
        if last_word is not None and cancelled:
            return last_word
        if last_word is not None and not last_word.began:
            self._stillborn.add(f"of the last: {last_word.reason}")
            return last_word
        seen = self._seen_of(run)
        if last_word is None and (seen is None or not seen.status.finished):
            self._ended_since.pop(run.name, None)
            return None
        since = self._ended_since.setdefault(run.name, time.monotonic())
        if seen is None or not seen.status.finished:  # its program was asked to end; the cluster may give the cause
            return None if time.monotonic() - since < _LAST_WORD else last_word
        if seen.out_of_memory:
            return JobState(status=JobStatus.EXITED, signal=9, oom_kills=1, reason=seen.reason)
        may_come = seen.ran and (run.began() or not cancelled)
        known = min(self._seen_at, self._storage.collected_at())
        if last_word is None and may_come and known - since < _LAST_WORD:  # its file may arrive later
            return None
        if run.began():
            self._stillborn.clear()
        elif last_word is None and seen.status is JobStatus.EXITED:
            where, log = self._storage.why_not(run.job_id), self._own_log(run)
            self._stillborn.add_silent(where, self.kind, log, seen.reason)
        elif last_word is None and not (seen.ran or cancelled or seen.overtime or self._one_runs()):
            self._stillborn.add_lost(seen.reason, min(self._known_since[run.name], self._seen_at))
        knows = run.name in self._seen and seen.status is not JobStatus.EXITED  # then it may give the cause
        source = seen if last_word is None or knows else last_word
        return JobState(status=JobStatus.LOST, limit="job" if seen.overtime else None, reason=source.reason)

    def _one_runs(self) -> bool:
        """Whether a job that has not ended has begun, which an error would end."""
        return any(run.began() for job_id in self._taken if (run := self._records.run(job_id)))

    def _seen_of(self, run: Run) -> Seen | None:
        """Return what the cluster reports of a submitted run; None if it must be queried first."""
        known_since = self._known_since.setdefault(run.name, time.monotonic())
        unknown = Seen(JobStatus.LOST, f"{self.kind} no longer knows the job")
        return self._seen.get(run.name, unknown if self._seen_at > known_since else None)

    def _settle(self, job_id: str, slot: str, state: JobState, run: Run | None) -> None:
        """Record how a job ended. A lost run may still be alive out of sight, so it is asked to end."""
        if run is not None:
            if state.status is not JobStatus.EXITED:
                self._records.revoke(run)
            self._known_since.pop(run.name, None)
            self._ended_since.pop(run.name, None)
        self._records.settle(job_id, state.model_copy(update={"slot": slot, "where": self._where(run) if run else ""}))
        self._records.drop_claim(slot, job_id)
        self._taken.pop(job_id, None)

    def _state(self, job_id: str) -> JobState:
        if outcome := self._records.outcome(job_id):
            return outcome
        if job_id in self._waiting:
            return JobState(status=JobStatus.PENDING)
        slot = self._taken.get(job_id)
        if slot is None and self._records.is_known(job_id):  # perhaps since this one looked
            if job_id in self._records.queued():
                return JobState(status=JobStatus.PENDING)
            slot = self._records.taken().get(job_id)
        if slot is None:
            return JobState(status=JobStatus.LOST, reason="the service does not know this job")
        run = self._records.run(job_id)
        seen = self._seen.get(run.name) if run else None
        if run is not None and (run.began() or (seen and seen.status is JobStatus.RUNNING)):
            return JobState(status=JobStatus.RUNNING, slot=slot, where=self._where(run))
        return JobState(status=JobStatus.PENDING, slot=slot, reason=seen.reason if seen else "")

    def _await_gone(self) -> None:
        """Wait until the cluster has no run of this root, and end the rest by force after a grace period."""
        await_gone(self.kind, self._root, lambda: self._seen if self._refresh() else None, self._withdraw_or_say)

    # --- below, the lock is not held -----------------------------------------------------------------------------

    def _bring_news(self) -> None:
        if self._storage.due() and self._records.dir.exists():
            with self._records.service_lock():
                self._tend()

    def _await_cancelled(self, job_id: str) -> None:
        """Wait until a job that was asked to end has ended, by force if it has not begun or does not react."""
        begin = time.monotonic()
        next_force = begin
        while True:
            now = time.monotonic()
            with self._records.service_lock():
                self._tend(fresh=now >= next_force, submit=False)
                if self._state(job_id).status.finished or not self._records.cancel_mark(job_id).exists():
                    return  # if the mark is gone, the job was submitted again meanwhile
                if now - begin > ACTS_WITHIN:
                    raise ServiceError(f"training_service: {self.kind} has not ended job {job_id}, which was cancelled")
                run = self._records.run(job_id)
                if now >= next_force and run and not (run.began() and now - begin < self._storage.answers_within):
                    self._withdraw_or_say([run.name])
            next_force = now + LOOK if now >= next_force else next_force
            time.sleep(_POLL)

    def _withdraw_or_say(self, names: Sequence[str]) -> None:
        try:
            self._withdraw(names)
        except ClusterSilentError as error:
            self._say_silent(error)

    def _handle(self, job_id: str) -> JobHandle:
        return JobHandle(service=self.kind, job_id=job_id)
