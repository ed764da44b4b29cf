"""What the HTML report shows of a study: plain records, for whoever can read the study to fill."""

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
"""A Plotly figure as JSON: `data` and `layout`. A color may be `var(--NAME)`, one of the page's."""


class RunEnd(StrEnum):
    """What became of one run of a job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed by its trials"
    LOST = "lost with what it ran on"
    CANCELLED = "cancelled"
    RUNNING = "running"


@dataclass(frozen=True)
class JobRun:
    """One run of a job on a slot.

    Attributes:
        job: its id.
        slot: where it ran; None if that is not known.
        submitted: when it was given to the training service.
        began: when its process came up, as far as is known.
        ended: None while it runs.
        retry: it repeats what an earlier job could not bring to its end.
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
    """A round, its state, and the seconds it has run."""

    number: int
    state: str
    seconds: float
    message: str


@dataclass(frozen=True)
class StudyFacts:
    """All that a report needs to know.

    Attributes:
        trials: all, by number.
        best: the best scored ones, the best first.
        curves: of the best trials, the best first, then of others.
        domains: of the labels, where the space could be asked; the others are guessed from the trials.
        models: of the best trials, by number.
        runs: of jobs, in any order.
        plans: by the job's name, how it merged its trials.
        missing: sentences about what could not be had, and why.
        made_at: the time of the report.
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
        """Those trials that have all objectives' metrics."""
        metrics = [objective.metric for objective in self.config.objectives]
        return [t for t in self.trials if t.status.scored and all(metric in t.metrics for metric in metrics)]
