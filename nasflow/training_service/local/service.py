"""Runs jobs on this machine: one worker process per slot, which forks a process for each job."""

import contextlib
import json
import logging
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.local import LocalServiceConfig
from nasflow.errors import ServiceError
from nasflow.job.spec import JobSpec
from nasflow.system.process_id import is_stopped, process_id
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.files.shared_root import RootHere, import_path
from nasflow.training_service.local.active_gpus import ActiveGpus
from nasflow.training_service.local.slots import gpu_slots, slot_environments
from nasflow.training_service.local.state import ROOT_VARIABLE, TOKEN_VARIABLE, Layout, LocalState, WorkerRecord
from nasflow.training_service.machine.environment import inherited
from nasflow.training_service.machine.gpus import read_gpus
from nasflow.training_service.machine.job_process import GRACE
from nasflow.training_service.machine.processes import KILLED_WITHIN, carriers, descendants, end_all

RUNNER = "nasflow.training.runner:run_job_file"
# Nearly every job needs these, and they are slow to import; a forked job has them at once.
PRELOAD = ("nasflow.training.training_job", "nasflow.training.warm", "nasflow.evaluator.data")
_POLL = 0.02  # seconds
_WAIT_ON = 0.03  # seconds for which jobs that were seen to wait are not looked at again, as many may be followed
# Until when, which jobs, and their state.
_NONE_WAITS: tuple[float, Collection[str], JobState] = (0.0, (), JobState(status=JobStatus.PENDING))
_WORKER_ANSWERS_WITHIN = GRACE + 5.0  # seconds until a worker that was asked to cancel is considered hung
_STILLBORN_LIMIT = 3
_STOPPED_LIMIT = 60.0  # seconds for which a worker may be stopped by SIGSTOP
_KILLED_AGAIN = 0.2  # seconds for what has hung in the kernel to end, because others wait for the lock
_HUNG_EVERY = 10.0  # seconds between two looks at whether what hangs in the kernel has ended
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Program:
    """A running program that is the worker of a slot or will fork those of several. `token` is its TOKEN_VARIABLE."""

    process: subprocess.Popen[bytes]
    token: str


class LocalService(RootHere):
    """Runs jobs in processes of this machine.

    The workers outlive this process, and the next `LocalService` on the same root finds them. A worker exits after
    `config.idle_timeout` seconds without work. The working folder of jobs is the root.

    When a worker is killed (SIGKILL), the kernel kills its job too. The next call to any service on this root finds the
    processes that the job had started, by the environment they inherited, and ends them. Only a process that has
    cleared its environment, left its session and lost its parent escapes.

    With `use_active_gpu: false`, a slot takes no new job while others compute on its GPU; a job waits while no slot can
    take it. `prepare`, `submit`, `status` and `free_slots` check this.

    After `config.abandoned_after` seconds without one of these calls, a worker ends its job, which is then LOST, and
    itself.

    Args:
        config: the slots and the idle timeout.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
        preload: modules that a worker imports before its first job, unless each job runs as a new program.
        secrets: what jobs get of the search's secrets. Workers receive them through a pipe when they start.
    """

    def __init__(
        self,
        config: LocalServiceConfig,
        root: Path,
        runner: str = RUNNER,
        preload: Sequence[str] = PRELOAD,
        *,
        secrets: JobSecrets = NO_SECRETS,
    ):
        super().__init__(root)
        self._config = config
        self._job_secrets = secrets
        self._state = LocalState(self._root)
        self._active = None if config.use_active_gpu or not config.gpus else ActiveGpus(self._state, gpu_slots(config))
        options = [
            *("--runner", runner, "--idle-timeout", str(config.idle_timeout)),
            *("--abandoned-after", str(config.abandoned_after)),
            *(["--preload", *preload] if config.reuse else ["--fresh"]),
        ]
        program = [sys.executable, "-P", "-m", "nasflow.training_service.local.worker", str(self._root)]
        self._layouts = {
            slot: Layout(
                command=[*program, slot, *options],
                environment=environment,
                secrets=[*secrets.names, *config.pass_env],
            )
            for slot, environment in slot_environments(config).items()
        }
        self._started: dict[int, subprocess.Popen[bytes]] = {}
        self._stillborn: Counter[str] = Counter()
        self._stopped_since: dict[int, float] = {}
        self._said = set[str]()
        self._hung_at: dict[str, float] = {}  # by the slot, when its processes were last seen to hang
        self._early: dict[tuple[str, ...], _Program] = {}
        self._waiting = _NONE_WAITS

    @contextmanager
    def early_start(self) -> Iterator[None]:
        """Context in which the workers that `prepare` would start already import what jobs need.

        They change nothing of the root before `prepare` is called, and unused ones are ended when the context exits.
        For callers that do not know yet whether there is anything to run.
        """
        if not self._state.dir.exists():  # else there are workers already, perhaps of another controller
            self._early = {group: self._launch(group, early=True) for group in self._groups(self._layouts)}
        try:
            yield
        finally:
            for program in self._early.values():
                program.process.kill()
                program.process.communicate()
            self._early = {}

    def validate(self) -> None:  # noqa: D102
        super().validate()
        gpus = self._config.gpus
        if len(set(gpus)) < len(gpus):
            raise ServiceError(
                f"training_service.gpus: {gpus} names a GPU twice; to share one, raise training_service.slots_per_gpu"
            )
        if gpus and max(gpus) >= (count := len(read_gpus())):
            raise ServiceError(
                f"training_service.gpus: there is no GPU {max(gpus)}, this machine has {count}; "
                "name others (counted from 0) or leave the key out to train on the CPU"
            )

    def prepare(self) -> None:  # noqa: D102
        with self._state.service_lock():
            self._attend()
            for worker in self._state.workers():
                if worker.layout == self._layouts.get(worker.slot):
                    continue
                if self._state.claimed(worker.slot):
                    self._state.retire(worker.slot).touch()
                else:
                    self._bury(worker)
            self._start_missing()

    def submit(self, spec: JobSpec) -> JobHandle:  # noqa: D102
        with self._state.service_lock():
            self._attend()
            if self._look(spec.job_id).status in (JobStatus.LOST, JobStatus.CANCELLED):
                self._state.enqueue(spec)
            self._start_missing()
        return _handle(spec.job_id)

    def status(self, handle: JobHandle) -> JobState:  # noqa: D102
        until, waiting, state = self._waiting
        if handle.job_id in waiting and time.monotonic() < until:
            return state
        with self._state.service_lock():
            self._attend()
            if queued := self._state.queued():
                self._start_missing()
            state = self._look(handle.job_id)
            if state.status is JobStatus.PENDING:
                self._waiting = time.monotonic() + _WAIT_ON, queued.keys(), state
            return state

    def cancel(self, handle: JobHandle) -> None:  # noqa: D102
        deadline = time.monotonic() + _WORKER_ANSWERS_WITHIN
        with self._state.service_lock():
            self._bury_the_dead()
            self._ask_to_cancel(handle.job_id)
        while True:
            with self._state.service_lock():
                self._bury_the_dead()
                state = self._look(handle.job_id)
                if state.status.finished or not self._state.cancel_mark(handle.job_id).exists():
                    return  # if the mark is gone, the job was submitted again meanwhile
                if time.monotonic() > deadline and state.slot and (worker := self._state.worker(state.slot)):
                    self._bury(worker)
            time.sleep(_POLL)

    def list(self) -> Sequence[JobHandle]:  # noqa: D102
        with self._state.service_lock():
            self._bury_the_dead()
            return [_handle(job_id) for job_id in self._unfinished()]

    def slots(self) -> Sequence[str]:  # noqa: D102
        return tuple(self._layouts)

    def free_slots(self) -> Sequence[str]:
        """Return the slots that could take one more job now: neither busy nor held, minus one for each waiting job."""
        with self._state.service_lock():
            self._attend()
            taken = {worker.slot for worker in self._state.workers() if self._state.claimed(worker.slot)}
            free = [slot for slot in self._layouts if slot not in taken | set(self._state.held())]
            return tuple(free[len(self._state.queued()) :])

    def cleanup(self) -> None:  # noqa: D102
        with self._state.service_lock():
            self._bury_the_dead()
            jobs = self._unfinished()
            for job_id in jobs:  # all at once, so that their grace periods overlap
                self._ask_to_cancel(job_id)
        for job_id in jobs:
            self.cancel(_handle(job_id))
        if self._active:
            self._active.rest()
        with self._state.service_lock():
            for worker in self._state.workers():
                self._bury(worker)
            hung = self._end(lambda: carriers(ROOT_VARIABLE, str(self._root)), KILLED_WITHIN)
            if self._state.dir.exists():
                shutil.rmtree(self._state.dir)
            for process in self._started.values() if not hung else ():
                process.wait()  # the environment of an exiting process can't be read
            self._reap()

    # --- below, the lock is held ---------------------------------------------------------------------------------

    def _attend(self) -> None:
        """Do the work that is due at every call of a controller."""
        self._bury_the_dead()
        self._state.note_call()
        if self._active:
            self._active.look()

    def _look(self, job_id: str) -> JobState:
        if outcome := self._state.outcome(job_id):
            return outcome
        if job_id in self._state.queued():
            return JobState(status=JobStatus.PENDING, reason="; ".join(dict.fromkeys(self._state.held().values())))
        for worker in self._state.workers():
            if job_id in self._state.claimed(worker.slot):
                return JobState(status=JobStatus.RUNNING, slot=worker.slot)
        return JobState(status=JobStatus.LOST, reason="the service does not know this job")

    def _unfinished(self) -> Sequence[str]:
        claimed = [job_id for worker in self._state.workers() for job_id in self._state.claimed(worker.slot)]
        return [job_id for job_id in (*claimed, *self._state.queued()) if not self._state.outcome(job_id)]

    def _ask_to_cancel(self, job_id: str) -> None:
        self._waiting = _NONE_WAITS
        state = self._look(job_id)
        if state.status is JobStatus.PENDING:
            self._state.queued()[job_id].unlink()
            self._state.settle(job_id, JobState(status=JobStatus.CANCELLED))
        elif state.status is JobStatus.RUNNING:
            self._state.cancel_mark(job_id).touch()

    def _groups(self, slots: Iterable[str]) -> Iterable[tuple[str, ...]]:
        """Group the slots by environment: libraries read it when imported, so workers forked together must share it.

        Workers are found by their environment, and only on Linux can a forked process change the one that others see.
        """
        groups: dict[object, list[str]] = defaultdict(list)
        for slot in slots:
            environment = self._layouts[slot].environment
            groups[tuple(environment.items()) if sys.platform == "linux" else slot].append(slot)
        return [tuple(group) for group in groups.values()]

    def _start_missing(self) -> None:
        if not self._active:
            self._state.release()  # slots may still be held under an earlier config
        for group in self._groups(slot for slot in self._layouts if self._state.worker(slot) is None):
            self._start(group)

    def _start(self, group: tuple[str, ...]) -> None:
        for slot in group:
            if self._stillborn[slot] >= _STILLBORN_LIMIT:
                log = self._state.log(slot)
                raise ServiceError(
                    f"training_service: the worker of slot {slot} exits during startup; {log} may show why"
                )
        orders = json.dumps({"import_path": import_path(), "secrets": dict(self._job_secrets.texts())})
        program = self._early.pop(group, None) or self._launch(group)
        self._started[program.process.pid] = program.process
        identity = process_id(program.process.pid)
        for slot in group:
            if identity is None:
                self._stillborn[slot] += 1
            else:  # until it has forked the workers, which replace this record
                record = WorkerRecord(slot=slot, process=identity, token=program.token, layout=self._layouts[slot])
                self._state.register(record)
        if program.process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it has died; the next check of its record shows that
                program.process.stdin.write(f"{orders}\n".encode())
                program.process.stdin.close()

    def _launch(self, group: tuple[str, ...], early: bool = False) -> _Program:
        """Start the program of some slots, which waits for its orders; an early one keeps its output until then."""
        log = self._state.log(group[0])
        token = secrets.token_hex(8)
        marks = {"PYTHONPATH": import_path(), ROOT_VARIABLE: str(self._root), TOKEN_VARIABLE: token}
        layout = self._layouts[group[0]]
        also = [*(["--early"] if early else []), *(["--also", *group[1:]] if group[1:] else [])]
        if not early:
            log.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile() if early else log.open("ab") as output:
            process = subprocess.Popen(
                [*layout.command, *also],
                env=inherited(self._job_secrets.withheld, self._config.pass_env) | layout.environment | marks,
                cwd=None if early else self._root,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return _Program(process, token)

    def _bury_the_dead(self) -> None:
        for worker in self._state.workers():
            if self._state.hangs(worker.slot):
                if time.monotonic() - self._hung_at.get(worker.slot, float("-inf")) > _HUNG_EVERY:
                    self._bury(worker)
            elif not worker.process.alive():
                self._stillborn[worker.slot] = (
                    0 if self._state.ready(worker.slot).exists() else (self._stillborn[worker.slot] + 1)
                )
                self._bury(worker)
            elif self._is_stopped_for_good(worker.process.pid):
                _LOG.warning("worker %d was stopped (SIGSTOP) and does not go on: it is ended", worker.process.pid)
                self._bury(worker)
        self._reap()

    def _is_stopped_for_good(self, pid: int) -> bool:
        """Whether a process has been stopped at every look for so long that nobody will continue it."""
        if not is_stopped(pid):
            self._stopped_since.pop(pid, None)
            return False
        return time.monotonic() - self._stopped_since.setdefault(pid, time.monotonic()) > _STOPPED_LIMIT

    def _bury(self, worker: WorkerRecord) -> None:
        """End a worker and everything it left running. Its job is lost if no outcome is on record.

        If something hangs in the kernel, where not even SIGKILL ends it, the slot is out of use until that has ended.
        """
        reason = f"the worker of slot {worker.slot} (process {worker.process.pid}) was killed or crashed"
        if not worker.token:
            reason = f"the record of the worker of slot {worker.slot} is damaged"
            _LOG.warning("%s: %s; all workers there are ended", self._root, reason)

        def find() -> set[psutil.Process]:
            if not worker.token:
                return {*carriers(ROOT_VARIABLE, str(self._root))}
            # itself, too: of one that has only just started, the environment can't be read yet
            below = descendants(worker.process.pid, itself=True) if worker.process.alive() else []
            return {*carriers(TOKEN_VARIABLE, worker.token), *below}

        hung = self._end(find, _KILLED_AGAIN if self._state.hangs(worker.slot) else KILLED_WITHIN)
        for job_id in self._state.claimed(worker.slot):
            self._state.settle(job_id, JobState(status=JobStatus.LOST, slot=worker.slot, reason=reason))
            self._state.drop_claim(worker.slot, job_id)
        if hung:
            self._state.hang(worker.slot, f"slot {worker.slot} takes no job: {hung}")
            self._hung_at[worker.slot] = time.monotonic()
        else:
            self._state.dismiss(worker.slot)

    def _end(self, find: Callable[[], Iterable[psutil.Process]], within: float) -> str:
        """End processes, and return why some can't be ended; empty if all are gone. Each reason is logged once."""
        try:
            end_all(find, killed_within=within)
        except TimeoutError as error:
            if str(error) not in self._said:
                _LOG.warning("%s: %s", self._root, error)
                self._said.add(str(error))
            return str(error)
        return ""

    def _reap(self) -> None:
        """Reap ended workers that this process started, which would otherwise stay zombies."""
        self._started = {pid: process for pid, process in self._started.items() if process.poll() is None}


def _handle(job_id: str) -> JobHandle:
    return JobHandle(service="local", job_id=job_id)
