"""A trial: one architecture, trained and scored. The record that all packages share."""

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field

from nasflow.seeds import derive_seed
from nasflow.space.architecture import Architecture


class TrialStatus(StrEnum):
    """The state of a trial. `TRAINED` and `STOPPED_EARLY` trials have a score.

    A `FAILED` trial gets a score only if it is retried. An `INVALID` one never does: its architecture does not fit.
    """

    SUBMITTED = "submitted"
    RUNNING = "running"
    TRAINED = "trained"
    STOPPED_EARLY = "stopped_early"
    FAILED = "failed"
    INVALID = "invalid"

    @property
    def finished(self) -> bool:
        """Whether the trial has ended; only a retry can change it."""
        return self not in (TrialStatus.SUBMITTED, TrialStatus.RUNNING)

    @property
    def scored(self) -> bool:
        """Whether the trial has final metrics."""
        return self in (TrialStatus.TRAINED, TrialStatus.STOPPED_EARLY)


STOP_AFTER = "stop_after"
"""The label of the epochs after which a trial ends (`evaluator.stop_after`)."""


def without_stop(architecture: Architecture) -> Architecture:
    """Return an architecture without the choice of when its trial ends."""
    return Architecture({label: value for label, value in architecture.items() if label != STOP_AFTER})


def trial_seed(study_seed: int, architecture: Architecture) -> int:
    """Return the seed of an architecture's trials, which follows from it and the study's seed alone.

    Trials that differ only in when they end have the same one, because one may go on where the other ended.
    """
    return derive_seed(study_seed, without_stop(architecture).to_json())


class FailureKind(StrEnum):
    """The cause of a failed attempt: the trial's own code, or the infrastructure it ran on."""

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
        error: the text of the error that made it fail, None otherwise.
        replayed_from: the number of the trial of the same architecture that the result was copied from, or None.
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
