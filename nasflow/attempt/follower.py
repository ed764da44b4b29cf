"""One attempt, from submission to its record: submit or re-attach, read events, judge the end, record it once."""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pydantic import ValidationError

from nasflow.attempt.verdict import Verdict, judge
from nasflow.errors import InterruptedSearchError, RefusedError
from nasflow.job import activity
from nasflow.job.asked_end import ended_when
from nasflow.job.events import (
    Ended,
    Entered,
    Epoch,
    Event,
    Evicted,
    Final,
    Planned,
    Started,
    each_line,
    parse_event,
)
from nasflow.job.spec import JobSpec
from nasflow.study.records import Attempt, AttemptState, EpochRecord, FinalRecord
from nasflow.study.study import Study
from nasflow.training_service.base import JobHandle, JobState, JobStatus, TrainingService
from nasflow.trial import FailureKind

_LOG = logging.getLogger(__name__)

_ENDING_SECONDS = 0.02  # between two looks at a job that has written its last event


@dataclass
class _Reported:
    """What a job's events have reported so far."""

    finals: dict[int, FinalRecord] = field(default_factory=dict)
    failures: dict[int, str] = field(default_factory=dict)
    present: set[int] = field(default_factory=set)  # members of the job, of which
    waiting: set[int] = field(default_factory=set)  # have not begun in it
    ended: Ended | None = None
    strangers: bool = False  # whether it reported of trials that are no members


class AttemptFollower:
    """Brings attempts of one study to their recorded outcome on one service.

    Everything here can be repeated after a crash: a job is submitted once by its id, events may be read again, and an
    outcome is recorded once, in one transaction.

    Args:
        stop: when set, `follow` raises InterruptedSearchError soon.
        poll_seconds: between two looks at a job.
    """

    def __init__(
        self,
        study: Study,
        service: TrainingService,
        stop: threading.Event,
        poll_seconds: float = 0.1,
    ):
        self._study = study
        self._service = service
        self._stop = stop
        self._poll_seconds = poll_seconds

    def follow(
        self,
        attempt: Attempt,
        make_spec: Callable[[str], JobSpec],
        on_event: Callable[[Event], None],
        on_look: Callable[[JobState], None] = lambda state: None,
        turn: AbstractContextManager[object] | None = None,
    ) -> Attempt:
        """Follow an attempt to its end and return it with its outcome recorded.

        Args:
            attempt: planned, running (perhaps under an earlier controller), or failed and to be started again.
            make_spec: the job of the attempt, given its id.
            on_event: called with each event as it is read, after it is recorded.
            on_look: called after each look at the job with its state, whether it had news or not.
            turn: the job is submitted, or found again, within this.

        Raises:
            InterruptedSearchError: `stop` was set first.
            RefusedError: the job was refused; its attempt is recorded, and may start again.
        """
        with turn or nullcontext():
            attempt, handle = self._submit_or_reattach(attempt, make_spec)
        reported = _Reported()
        offset = 0
        while True:
            state = self._look(handle)  # first: once it says finished, the events are complete
            more = True
            while more:
                lines, offset = self._service.events(handle, offset)
                for event in self._take(attempt, lines, reported):
                    on_event(event)
                more = state.status.finished and bool(lines)
            on_look(state)
            if state.status.finished:
                break
            if self._stop.wait(_ENDING_SECONDS if reported.ended else self._poll_seconds):
                raise InterruptedSearchError(f"attempt {attempt.id} is left for the next run")
        if self._stop.is_set() and state.status is JobStatus.CANCELLED:
            raise InterruptedSearchError(f"attempt {attempt.id} is left for the next run")
        attempt = self._record(attempt, state, reported, handle)
        if reported.ended is not None and reported.ended.refused:
            raise RefusedError(reported.ended.error)
        return attempt

    def plans(self, attempt: Attempt) -> list[Planned]:
        """Return the plans of the attempt's newest job, one for each time it formed units."""
        if attempt.handle is None:
            return []
        lines = each_line(partial(self._service.events, JobHandle.model_validate(attempt.handle)))
        events = [_parse(line) for line in lines if '"planned"' in line]
        return [event for event in events if isinstance(event, Planned)]

    def _submit_or_reattach(self, attempt: Attempt, make_spec: Callable[[str], JobSpec]) -> tuple[Attempt, JobHandle]:
        if attempt.state is AttemptState.RUNNING and attempt.handle is not None:
            handle = JobHandle.model_validate(attempt.handle)
            if self._look(handle).status not in (JobStatus.LOST, JobStatus.CANCELLED):
                return attempt, handle
        at = datetime.now(UTC)  # a job may have trained before its submission is on record
        handle = self._service.submit(make_spec(job_id(attempt, self._study.generation)))
        return self._study.start_attempt(attempt.id, handle.job_id, handle.model_dump(mode="json"), at=at), handle

    def _look(self, handle: JobHandle) -> JobState:
        """Return a job's state. A service without processes runs jobs in this call, and they end once `stop` is set."""
        with ended_when(self._stop.is_set):
            return self._service.status(handle)

    def _take(self, attempt: Attempt, lines: list[str], reported: _Reported) -> list[Event]:
        events = [event for line in lines if (event := _parse(line)) is not None]
        events = _of_members(attempt, events, reported)
        epochs = [
            EpochRecord(event.trial, event.epoch, event.metrics, event.seconds, attempt.id)
            for event in events
            if isinstance(event, Epoch)
        ]
        if epochs:
            self._study.record_epochs(epochs)
        for event in events:
            match event:
                case Started():
                    reported.present, reported.waiting = set(event.resumed), set(event.waiting)
                    reported.ended = None  # of the job's process before this one, as before a pause
                case Entered():
                    reported.waiting.discard(event.trial)
                case Final():
                    reported.finals[event.trial] = FinalRecord(
                        event.trial, event.metrics, event.epochs, event.stopped_early
                    )
                    reported.failures.pop(event.trial, None)
                case Evicted() if event.trial not in reported.finals:
                    reported.failures[event.trial] = event.error
                case Ended():
                    reported.ended = event
        return events

    def _record(self, attempt: Attempt, state: JobState, reported: _Reported, handle: JobHandle) -> Attempt:
        tail = "" if reported.ended or state.exit_code is None else self._service.log_tail(handle, 5).strip()
        verdict = judge(state, reported.ended, bool(reported.failures), tail)
        present = reported.present or set(attempt.members)
        open_members = [
            number
            for number in attempt.members
            if number in present - reported.finals.keys() - reported.failures.keys()
        ]
        places = _fewer_places(attempt, open_members, reported) if verdict.by_all else None
        if verdict.failure is FailureKind.TRIAL and verdict.error is not None and places is None:
            if reported.ended is None or state.limit is not None:
                open_members = self._suspects(open_members, reported, handle, verdict)
            together = f" (trained together: {', '.join(map(str, open_members))})" if len(open_members) > 1 else ""
            headline, *rest = verdict.error.split("\n", 1)
            reported.failures.update(dict.fromkeys(open_members, "\n".join([headline + together, *rest])))
        return self._study.record_outcome(
            attempt.id,
            verdict.state,
            [final for number, final in reported.finals.items() if number in attempt.members],
            {number: error for number, error in reported.failures.items() if number in attempt.members},
            failure=verdict.failure,
            error=verdict.error or _failures_text(reported.failures),
            slot=state.slot,
            evidence=_evidence(state, reported.ended),
            places=places,
        )

    def _suspects(self, open_members: list[int], reported: _Reported, handle: JobHandle, verdict: Verdict) -> list[int]:
        """Return the trials that may have ended the job's process: the one it was executing, or all that had begun.

        All that have begun use memory, and the GPU, whichever asked last. If all were waiting, all are suspects.
        """
        begun = [number for number in open_members if number not in reported.waiting] or open_members
        if verdict.by_all:
            return begun
        try:
            doing = activity.read(self._service.fetch(f"jobs/{handle.job_id}/{activity.FILE}"))
        except FileNotFoundError:  # it crashed before it wrote one
            doing = None
        return [doing.trial] if doing is not None and doing.trial in open_members else begun


def job_id(attempt: Attempt, generation: int) -> str:
    """Return the job id of the attempt's next start; each restart is a new job.

    If the attempt's job was lost under an earlier controller, it may write on out of sight. So it is not the same job.
    """
    restart = attempt.restarts + attempt.state.finished
    anew = f"-g{generation}" if generation and attempt.state is AttemptState.RUNNING else ""
    return f"r{attempt.round:03d}-{attempt.kind}-{attempt.number:03d}-{restart}{anew}"


def _evidence(state: JobState, ended: Ended | None) -> dict[str, Any]:
    found = state.model_dump(mode="json", exclude_defaults=True, exclude={"slot"})
    return found | ({"preempted": True} if ended is not None and ended.preempted else {})


def _of_members(attempt: Attempt, events: list[Event], reported: _Reported) -> list[Event]:
    """Return the events without those of other trials, of which a job's host is not trusted to report."""
    members = {None, *attempt.members}
    trials = [event.trial if isinstance(event, Entered | Epoch | Final | Evicted) else None for event in events]
    strangers = [trial for trial in trials if trial not in members]
    if strangers and not reported.strangers:
        reported.strangers = True
        _LOG.warning(
            "job %s reports of trials that it does not train, such as %d; this is skipped", attempt.job_id, strangers[0]
        )
    return [event for event, trial in zip(events, trials, strict=True) if trial in members]


def _fewer_places(attempt: Attempt, open_members: Sequence[int], reported: _Reported) -> int | None:
    """Return half as many members at a time as were too many for a job; None if that was one alone."""
    begun = sum(number not in reported.waiting for number in open_members)
    together = min(begun or len(open_members), attempt.places or len(open_members))
    return together // 2 if together > 1 else None


def _failures_text(failures: dict[int, str]) -> str | None:
    """Return one failure in full, several by their headlines, None if there are none."""
    if len(failures) < 2:
        return next(iter(failures.values()), None)
    return "\n".join(f"trial {number}: {error.partition(chr(10))[0]}" for number, error in sorted(failures.items()))


def _parse(line: str) -> Event | None:
    try:
        return parse_event(line)
    except ValidationError:
        _LOG.warning("skipped a line that is no event, left by a process killed while writing: %.80r", line)
        return None
