"""A trial's objectives as losses."""

import math
from collections.abc import Sequence

from nasflow.config.search import Objective
from nasflow.trial import Trial


def losses(trial: Trial, objectives: Sequence[Objective]) -> list[float] | None:
    """Return one loss per objective; None unless the trial has a finite score in each."""
    if not trial.status.scored:
        return None
    values = [trial.metrics.get(objective.metric, math.nan) for objective in objectives]
    if not all(map(math.isfinite, values)):
        return None
    return [objective.to_loss(value) for value, objective in zip(values, objectives, strict=True)]
