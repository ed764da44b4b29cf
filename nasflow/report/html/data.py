"""The contents of the HTML report as plain records. Code that can read the study fills them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from functools import cached_property
from typing import Any

from nasflow.config.search import SearchConfig
from nasflow.report.curves import Curves
from nasflow.report.model.tree import Block
from nasflow.report.plans import Plan
from nasflow.space.domain import Domain
from nasflow.trial import Trial

Figure = dict[str, Any]
"""A Plotly figure as JSON: `data` and `layout`. A color may be a CSS variable of the page, `var(--NAME)`."""


class RunEnd(StrEnum):
    """How one run of a job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed because of its trials"
    LOST = "lost with its machine"
    CANCELLED = "cancelled"
    RUNNING = "running"


@dataclass(frozen=True)
class JobRun:
    """One run of a job on a slot.

    Attributes:
        job: id of the job.
        slot: where it ran; None if unknown.
        submitted: when the training service received it.
        began: when its process started, as far as known.
        ended: None while it runs.
        retry: whether it repeats work that an earlier job did not finish.
    """

    job: str
    trials: Sequence[int]
    slot: str | None
    submitted: datetime
    began: datetime
    ended: datetime | None
    end: RunEnd
    retry: bool = False
    error: str | None = None


@dataclass(frozen=True)
class RoundFact:
    """A round, its state, and its duration in seconds."""

    number: int
    state: str
    seconds: float
    message: str


@dataclass(frozen=True)
class StudyFacts:
    """Everything that a report shows.

    Attributes:
        created_at: when the study was created.
        made_at: when the report is made.
        trials: all trials, by number.
        best: the best scored trials, best first.
        curves: curves of the best trials, best first, then of others.
        domains: the domains of labels, if the space is available; others are guessed from the trials.
        models: models of the best trials, by trial number.
        runs: the runs of jobs, in any order.
        plans: the merge plans of each job, by its name.
        missing: sentences that say what is not available, and why.
    """

    config: SearchConfig
    created_at: datetime
    made_at: datetime
    rounds: Sequence[RoundFact] = ()
    trials: Sequence[Trial] = ()
    best: Sequence[Trial] = ()
    curves: Curves = field(default_factory=dict)
    domains: Mapping[str, Domain] = field(default_factory=dict)
    models: Mapping[int, Block] = field(default_factory=dict)
    runs: Sequence[JobRun] = ()
    plans: Mapping[str, Sequence[Plan]] = field(default_factory=dict)
    missing: Sequence[str] = ()

    @cached_property
    def scored(self) -> list[Trial]:
        """The trials with the metrics of all objectives."""
        metrics = [objective.metric for objective in self.config.objectives]
        return [t for t in self.trials if t.status.scored and all(metric in t.metrics for metric in metrics)]
