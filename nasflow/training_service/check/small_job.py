"""The controller's side of one small job."""

import time

from nasflow.job.events import Ended, Started, parse_event
from nasflow.job.spec import JobSpec
from nasflow.training_service.base import JobState, JobStatus, TrainingService
from nasflow.training_service.check.job import REPORT, UNANSWERED, NodeReport
from nasflow.training_service.check.judge import Clock

_RUNS_WITHIN = 300.0  # seconds from its place to its end: torch takes long to import on a slow disk
_REASON_WITHIN = 60.0  # seconds more in which a service may say why a job waits
_LOG_LINES = 20


class SmallJob:
    """Submits a job, and follows it by the service's contract.

    Attributes:
        slot: where it runs; None if the service has not said.
        began: when (monotonic) it was seen that it waits for the controller's answer; None if it does not yet.
        answered: whether `answer` was called.
        report: what it found; None if there is none.
        clock: how the clock there goes; None if not known.
        problem: why there is no report; empty if there is one.
        log: the end of its log, if there is a problem.
        done: whether there is nothing more to wait for.
    """

    def __init__(self, service: TrainingService, spec: JobSpec):
        self._service, self._spec = service, spec
        self.slot: str | None = None
        self.began: float | None = None
        self.report: NodeReport | None = None
        self.clock: Clock | None = None
        self.problem = self.log = ""
        self.done = False
        self._offset = 0
        self._ended: Ended | None = None
        self._least, self._most = float("-inf"), float("inf")
        self._running_since: float | None = None
        self._state: JobState | None = None
        self._submitted, self._answered = time.time(), 0.0
        self._handle = service.submit(spec)

    @property
    def ended(self) -> bool:
        """Whether the service has said that it is no longer there."""
        return self._state is not None and self._state.status.finished

    @property
    def answered(self) -> bool:
        """Whether the job was answered."""
        return self._answered > 0

    def answer(self) -> None:
        """Let the job end."""
        self._answered = time.time()
        self._service.stop_trial(self._spec.members[0].trial)

    def look(self) -> None:
        """Read what is new of it."""
        self._state = state = self._service.status(self._handle)
        self.slot = state.slot or self.slot
        if state.status is JobStatus.RUNNING and self._running_since is None:
            self._running_since = time.monotonic()
        lines, self._offset = self._service.events(self._handle, self._offset)
        for line in lines:
            self._take(line)
        if state.status.finished:
            self._finish(state)

    def give_up_if(self, waited: float, heard: str) -> None:
        """End the wait for a place if that took too long, and the wait for its end if that did.

        Args:
            waited: seconds beyond those that a job may wait for a place; negative while it may.
            heard: what the service has logged last.
        """
        if self.done or self._state is None:
            return
        if self._running_since is not None:
            if time.monotonic() - self._running_since > _RUNS_WITHIN:
                self._fail(f"its small job has not ended within {_RUNS_WITHIN:.0f} s")
        elif waited > (0 if self._state.reason or heard else _REASON_WITHIN):
            why = self._state.reason or heard or "the service gives no reason"
            self._fail(f"no place for its small job in time, because {why}; --seconds allows more")

    def _take(self, line: str) -> None:
        event, now = parse_event(line), time.time()
        if isinstance(event, Started):
            self.began = time.monotonic()
            self._compare(event.at, self._submitted, now)
        elif isinstance(event, Ended):
            self._ended = event
            unanswered = event.error == UNANSWERED or not self.answered
            self._compare(event.at, self._submitted if unanswered else self._answered, now)

    def _compare(self, there: float, earliest: float, latest: float) -> None:
        """Take into account that its clock showed `there` between two times of the clock here."""
        self._least, self._most = max(self._least, there - latest), min(self._most, there - earliest)

    def _finish(self, state: JobState) -> None:
        if state.status is not JobStatus.EXITED or state.exit_code != 0 or self._ended is None:
            how = {JobStatus.EXITED: "failed", JobStatus.LOST: "was lost", JobStatus.CANCELLED: "was cancelled"}
            self._fail(f"its small job {how.get(state.status, 'failed')}: {state.reason or 'no reason is known'}")
            return
        path = self._service.fetch(f"jobs/{self._spec.job_id}/{REPORT}")
        self.report = NodeReport.model_validate_json(path.read_bytes())
        self.clock = Clock(self._least, self._most)
        self.done = True

    def _fail(self, text: str) -> None:
        self.log = self._service.log_tail(self._handle, _LOG_LINES)
        last = next((line for line in reversed(self.log.splitlines()) if line.strip()), "")
        self.problem = f"{text}; its log ends with: {last}" if last and last not in text else text
        self.done = True
