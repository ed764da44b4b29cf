"""The study's records beside trials: plain frozen dataclasses, detached from the database."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

from nasflow.config.search import Objective
from nasflow.trial import FailureKind, TrialStatus


class RoundState(StrEnum):
    """The state of a sampling round."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class AttemptKind(StrEnum):
    """Whether an attempt's job trains several trials together, retries one on its own, or scores one on test data."""

    BATCH = "batch"
    ALONE = "alone"
    TEST = "test"


class AttemptState(StrEnum):
    """The state of an attempt."""

    PLANNED = "planned"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def finished(self) -> bool:
        """Whether the attempt's outcome is recorded."""
        return self not in (AttemptState.PLANNED, AttemptState.RUNNING)


@dataclass(frozen=True)
class RoundRecord:
    """One sampling round. `seconds` is the time it has run, without the time in which no controller was alive.

    Of rounds that overlap, the first one counts, so that the seconds of all rounds add up to the search's.
    """

    number: int
    state: RoundState
    started_at: datetime
    ended_at: datetime | None
    seconds: float
    message: str


@dataclass(frozen=True)
class Ending:
    """How a job of an attempt ended that did not succeed.

    Attributes:
        failure: what caused it.
        evidence: what the training service knew about the job's end, by name.
        places: how many of the members may train at a time from then on; None leaves that as it was.
        slot: where the job ran, for people.
        started_at: when the job was submitted.
        ended_at: when its end was recorded.
    """

    job_id: str | None
    failure: FailureKind | None
    error: str | None
    evidence: dict[str, Any]
    places: int | None = None
    slot: str | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


@dataclass(frozen=True)
class Attempt:
    """One job of some trials, with its state and outcome.

    Attributes:
        id: unique in the database.
        number: within its round and kind, from 0.
        members: numbers of the trials that it trains, in the order of the job.
        failure: what caused a failure.
        handle: what the training service needs to find the job again, as JSON.
        slot: where the job runs or ran, for people.
        restarts: how often the attempt was started again after it had ended.
        endings: of its jobs that did not succeed, the oldest first.
    """

    id: int
    round: int
    kind: AttemptKind
    number: int
    members: tuple[int, ...]
    state: AttemptState
    failure: FailureKind | None
    error: str | None
    job_id: str | None
    handle: dict[str, Any] | None
    slot: str | None
    restarts: int
    started_at: datetime | None
    ended_at: datetime | None
    endings: tuple[Ending, ...] = ()

    @property
    def places(self) -> int | None:
        """How many members may train at a time since one of its jobs ran out of memory; None if none has."""
        return next((ending.places for ending in reversed(self.endings) if ending.places is not None), None)


@dataclass(frozen=True)
class EpochRecord:
    """A trial's metrics after `epoch` (from 1); one that is not finite is None. `attempt_id` is None in a replay."""

    trial: int
    epoch: int
    metrics: Mapping[str, float | None]
    seconds: float = 0.0
    attempt_id: int | None = None


@dataclass(frozen=True)
class FinalRecord:
    """A trial that ended well in a job: its final metrics after `epochs` epochs."""

    trial: int
    metrics: Mapping[str, float]
    epochs: int
    stopped_early: bool = False


@dataclass(frozen=True)
class StudyInfo:
    """One line about a study.

    Attributes:
        objective: its first; None if its config can't be read.
        best: the best value of that, None while nothing is scored.
        problem: why its config can't be read; empty if it can.
    """

    name: str
    created_at: datetime
    rounds: int
    counts: dict[TrialStatus, int]
    objective: Objective | None
    best: float | None
    problem: str = ""
