"""A trial: one architecture, trained and scored. The record that every room passes around."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture


class TrialStatus(StrEnum):
    """Where a trial stands. `TRAINED` and `STOPPED_EARLY` carry a score.

    `FAILED` ones get one only when they are retried; `INVALID` ones, whose architecture does not fit, never.
    """

    SUBMITTED = "submitted"
    RUNNING = "running"
    TRAINED = "trained"
    STOPPED_EARLY = "stopped_early"
    FAILED = "failed"
    INVALID = "invalid"

    @property
    def finished(self) -> bool:
        """Nothing more will happen to the trial by itself."""
        return self not in (TrialStatus.SUBMITTED, TrialStatus.RUNNING)

    @property
    def scored(self) -> bool:
        """The trial has final metrics."""
        return self in (TrialStatus.TRAINED, TrialStatus.STOPPED_EARLY)


def trial_seed(study_seed: int, architecture: Architecture) -> int:
    """Return the seed of an architecture's trials, which follows from it and the study's seed alone."""
    return derive_seed(study_seed, architecture.to_json())


class FailureKind(StrEnum):
    """Whom a failed attempt is blamed on: the trial's own doing, or what it ran on."""

    TRIAL = "trial"
    INFRASTRUCTURE = "infrastructure"


class Trial(BaseModel):
    """One row of a study.

    Attributes:
        number: position in the study, from 0, never reused.
        round: the sampling round that proposed it, from 0.
        architecture: what was chosen, for the model and for the evaluator's searched values alike.
        seed: of its initial weights and its RNG stream; follows from the study's seed and the architecture alone.
        metrics: the final metrics by name, empty until the trial is scored.
        epochs: finished epochs so far.
        error: the text of what made it fail, None otherwise.
        replayed_from: the number of the trial with the same architecture whose result was taken over, None if trained.
    """

    model_config = ConfigDict(frozen=True)

    number: int = Field(ge=0)
    round: int = Field(ge=0)
    architecture: Architecture
    seed: int
    status: TrialStatus = TrialStatus.SUBMITTED
    metrics: dict[str, float] = {}
    epochs: int = 0
    error: str | None = None
    replayed_from: int | None = None
