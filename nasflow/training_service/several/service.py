"""The training service that runs jobs on several services at once."""

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from nasflow.errors import ServiceError
from nasflow.job.events import each_line
from nasflow.job.spec import JobSpec
from nasflow.training_service.base import JobHandle, JobState, JobStatus
from nasflow.training_service.files.shared_root import RootHere
from nasflow.training_service.several.records import SeveralRecords

_LOG = logging.getLogger(__name__)

_POLL = 0.05  # seconds
_PATIENCE = 60.0  # seconds of nothing but errors after which a service's jobs count as lost
_WAITS = 20.0  # seconds that a job waits in a service while another one has a free slot
_AVOIDED = 60.0  # seconds in which a service that failed, lost a job or kept one waiting gets no new one

T = TypeVar("T")


class SeveralServices(RootHere):
    """Gives each job to the fastest service that has a free slot; the others wait here.

    What finished jobs tell of a service is its speed; one that is not measured yet comes first, in the order of the
    config. A job that a service lost is LOST, and goes on elsewhere when it is submitted again, because the checkpoints
    of all services are in the same root. A service that fails, loses a job or keeps one waiting is avoided for a while.

    The choice of a service is on record before the job is submitted there. So after a kill in between, the next
    controller submits it to the same one, which runs a job once.

    Args:
        services: by name, the preferred first; all on the same root.
        root: the folder of the study's jobs and checkpoints.
    """

    def __init__(self, services: Mapping[str, RootHere], root: Path):
        super().__init__(root)
        self._services = dict(services)
        self._records = SeveralRecords(self._root)
        self._avoided_until: dict[str, float] = {}
        self._failing_since: dict[str, float] = {}

    # --- the contract ------------------------------------------------------------------------------------------------

    def validate(self) -> None:  # noqa: D102
        super().validate()
        for name, service in self._services.items():
            self._named(name, service.validate)

    def prepare(self) -> None:  # noqa: D102
        for name, service in self._services.items():
            self._named(name, service.prepare)
        with self._records.service_lock():
            for gone in set(self._records.holders()) - self._services.keys():
                for job_id in self._records.claimed(gone):
                    self._end(gone, job_id, _lost(f"{gone} is no longer among the training services"))
            self._tend()

    def submit(self, spec: JobSpec) -> JobHandle:  # noqa: D102
        handle = _handle(spec.job_id)
        if self.status(handle).status in (JobStatus.LOST, JobStatus.CANCELLED):
            with self._records.service_lock():
                if self._here(spec.job_id).status in (JobStatus.LOST, JobStatus.CANCELLED):
                    self._records.enqueue(spec)
                self._tend()
        return handle

    def status(self, handle: JobHandle) -> JobState:  # noqa: D102
        job_id = handle.job_id
        with self._records.service_lock():
            self._tend()
            name = self._records.chosen(job_id)
            if name not in self._services or self._records.given(name, job_id) is None:
                return self._here(job_id)
        try:
            state = self._services[name].status(handle)  # may take long, so others don't wait for it
            self._failing_since.pop(name, None)
            failed = False
        except ServiceError as error:
            state, failed = self._failed(name, error), True
        with self._records.service_lock():
            if self._records.chosen(job_id) != name or self._records.given(name, job_id) is None:
                return self._here(job_id)  # it was moved, or its end recorded, meanwhile
            if failed and state.status.finished and self._withdraw(name, job_id):
                self._tend()
                return self._here(job_id)
            if state.status.finished:
                state = self._end(name, job_id, state)
                self._tend()
                return state
            if state.status is JobStatus.PENDING and self._move(name, job_id):
                return self._here(job_id)
        return _placed(name, state)

    def cancel(self, handle: JobHandle) -> None:  # noqa: D102
        job_id = handle.job_id
        while True:
            with self._records.service_lock():
                if waiting := self._records.queued().get(job_id):
                    waiting.unlink()
                    self._records.settle(job_id, JobState(status=JobStatus.CANCELLED))
                    return
                name = self._records.chosen(job_id)
                if name not in self._services:
                    return
            self._services[name].cancel(handle)
            with self._records.service_lock():
                if self._records.chosen(job_id) != name:
                    return
                state = self._services[name].status(handle)
                known = self._records.given(name, job_id) is not None or self._records.outcome(job_id) is not None
                if state.status.finished:
                    self._end(name, job_id, state if known else JobState(status=JobStatus.CANCELLED))
                    return
            time.sleep(_POLL)

    def fetch(self, path: str) -> Path:  # noqa: D102
        parts = Path(path).parts
        if parts[:1] == ("jobs",) and len(parts) > 1:
            with self._records.service_lock():
                name = self._records.chosen(parts[1])
            if name in self._services:
                return self._services[name].fetch(path)
        return super().fetch(path)

    def list(self) -> Sequence[JobHandle]:  # noqa: D102
        with self._records.service_lock():
            jobs = [job_id for name in self._records.holders() for job_id in self._records.claimed(name)]
            handles = [_handle(job_id) for job_id in [*jobs, *self._records.queued()]]
        return [handle for handle in handles if not self.status(handle).status.finished]

    def slots(self) -> Sequence[str]:  # noqa: D102
        return tuple(f"{name}/{slot}" for name, service in self._services.items() for slot in service.slots())

    def cleanup(self) -> None:  # noqa: D102
        with self._records.service_lock():
            for job_id, waiting in self._records.queued().items():
                waiting.unlink()
                self._records.settle(job_id, JobState(status=JobStatus.CANCELLED))
        errors = []
        for name, service in self._services.items():
            try:
                self._named(name, service.cleanup)
            except ServiceError as error:  # the others are to be cleaned up nevertheless
                errors.append(str(error))
        if errors:
            raise ServiceError("; ".join(errors))
        with self._records.service_lock():
            for name in self._records.holders():
                for job_id in self._records.claimed(name):
                    self._end(name, job_id, self._records.outcome(job_id) or JobState(status=JobStatus.CANCELLED))
            if self._records.dir.exists():
                shutil.rmtree(self._records.dir)

    # --- below, the lock is held -------------------------------------------------------------------------------------

    def _tend(self) -> None:
        """Submit jobs whose service was chosen, perhaps by a killed controller, and choose one for those that wait."""
        for name in self._services:
            for job_id in self._records.claimed(name):
                if self._records.given(name, job_id) is None and not (
                    name in self._failing_since and self._avoided(name)
                ):
                    self._give(name, job_id)
        if self._records.queued():
            self._note_ends()
        given = True
        while given and self._records.queued() and (free := self._free()):
            job_id = self._records.take(free[0]) or ""
            given = self._give(free[0], job_id)

    def _note_ends(self) -> None:
        """Note the recorded ends of jobs that perhaps nobody asks for, so that others get their slots."""
        for name in self._services:
            for job_id in self._records.claimed(name):
                outcome = self._records.outcome(job_id)
                if outcome is not None and self._records.given(name, job_id) is not None:
                    self._end(name, job_id, outcome)

    def _free(self) -> Sequence[str]:
        """Return the services that may take a job, the fastest first."""
        speeds = self._records.speeds()
        order = {name: place for place, name in enumerate(self._services)}
        ready = [name for name in order if not self._avoided(name)] or order
        room = [name for name in ready if len(self._records.claimed(name)) < len(self._services[name].slots())]
        return sorted(room, key=lambda name: (-speeds.get(name, float("inf")), order[name]))

    def _give(self, name: str, job_id: str) -> bool:
        """Submit a job to the service chosen for it. If that fails, it waits again, unless the service may have it."""
        try:
            self._services[name].submit(self._records.spec(job_id))
        except ServiceError as error:
            self._failed(name, error)
            self._withdraw(name, job_id)
            return False
        self._failing_since.pop(name, None)
        self._records.note_given(name, job_id)
        return True

    def _withdraw(self, name: str, job_id: str) -> bool:
        """End a job at a service and let it wait here, to go on from its checkpoints; False if that fails."""
        spec = self._records.spec(job_id)
        try:
            self._services[name].cancel(_handle(job_id))
        except ServiceError as error:
            _LOG.warning("%s", _of(name, self._place(name), error))
            return False
        self._records.drop_claim(name, job_id)
        self._records.enqueue(spec)
        return True

    def _move(self, name: str, job_id: str) -> bool:
        """Take back a job that waits in a service although another one has a free slot; False if it stays."""
        since = self._records.given(name, job_id)
        if since is None or time.time() - since < _WAITS:
            return False
        if all(free == name or self._avoided(free) for free in self._free()):
            return False
        self._avoid(name)
        moved = self._withdraw(name, job_id)
        self._tend()
        return moved

    def _end(self, name: str, job_id: str, state: JobState) -> JobState:
        """Record how a job ended, and return it with its service's name."""
        begin = self._records.given(name, job_id)
        if state.status is JobStatus.LOST:
            self._avoid(name)
        elif state.exit_code == 0 and begin is not None:
            epochs = sum('"epoch"' in line for line in each_line(lambda offset: self.events(_handle(job_id), offset)))
            if epochs:
                self._records.note_speed(name, epochs, time.time() - begin)
        state = _placed(name, state)
        self._records.note_end(name, job_id, state)
        return state

    def _here(self, job_id: str) -> JobState:
        """Return the state of a job as it is on record here."""
        if job_id in self._records.queued():
            return JobState(status=JobStatus.PENDING)
        if (name := self._records.chosen(job_id)) is not None:
            return JobState(status=JobStatus.PENDING, reason=f"{name} has not taken it yet")
        return self._records.outcome(job_id) or _lost("the service does not know this job")

    # --- of services -------------------------------------------------------------------------------------------------

    def _avoid(self, name: str) -> None:
        self._avoided_until[name] = time.monotonic() + _AVOIDED

    def _avoided(self, name: str) -> bool:
        return self._avoided_until.get(name, 0.0) > time.monotonic()

    def _failed(self, name: str, error: ServiceError) -> JobState:
        """Return the state of a job of a service that answers with an error: LOST if it has done so for long.

        Raises:
            ServiceError: all services do.
        """
        self._avoid(name)
        now = time.monotonic()
        text = str(_of(name, self._place(name), error))
        if name not in self._failing_since:
            _LOG.warning("%s; other services get its next jobs", text)
        if self._failing_since.keys() | {name} == self._services.keys():
            raise ServiceError(text) from error
        if now - self._failing_since.setdefault(name, now) > _PATIENCE:
            return _lost(text)
        return JobState(status=JobStatus.RUNNING, reason=text)

    def _named(self, name: str, do: Callable[[], T]) -> T:
        """Call a service; an error of it names its place in the config."""
        try:
            return do()
        except ServiceError as error:
            raise _of(name, self._place(name), error) from error

    def _place(self, name: str) -> int:
        return tuple(self._services).index(name)


def _of(name: str, place: int, error: ServiceError) -> ServiceError:
    """Return an error with the place in the config of the service that it is of."""
    key, text = "training_service", str(error)
    if text.startswith(key):
        return ServiceError(f"{key}.{place}{text.removeprefix(key)}")
    return ServiceError(f"{key}.{place} ({name}): {text}")


def _placed(name: str, state: JobState) -> JobState:
    if state.slot is None or state.slot.startswith(f"{name}/"):
        return state
    return state.model_copy(update={"slot": f"{name}/{state.slot}"})


def _lost(reason: str) -> JobState:
    return JobState(status=JobStatus.LOST, reason=reason)


def _handle(job_id: str) -> JobHandle:
    return JobHandle(service="several", job_id=job_id)
