"""Converts trials to Optuna's, for its dashboard and analyses."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from nasflow.config.search import Objective
from nasflow.report.choices import OptunaChoices
from nasflow.report.text import plain_number
from nasflow.trial import Trial, TrialStatus

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Points = Sequence[tuple[int, Mapping[str, float | None]]]


def optuna_trial(
    trial: Trial,
    objectives: Sequence[Objective],
    choices: OptunaChoices,
    epochs: Points,
    times: tuple[datetime, datetime],
) -> "FrozenTrial":
    """Return a trial with params, values, the first objective by epoch, state, and everything else as attributes.

    A trial that was stopped early has final values, so it is complete; its status is one of the attributes.

    Args:
        trial: the trial of a study.
        objectives: the objectives of its search.
        choices: converts its architecture.
        epochs: pairs of an epoch and the metrics after it.
        times: when it started and ended, with time zones. The second is ignored while the trial runs.
    """
    from optuna.trial import FrozenTrial, TrialState  # noqa: PLC0415 - slow

    scored = trial.status.scored and all(objective.metric in trial.metrics for objective in objectives)
    states = {TrialStatus.SUBMITTED: TrialState.WAITING, TrialStatus.RUNNING: TrialState.RUNNING}
    state = TrialState.COMPLETE if scored else states.get(trial.status, TrialState.FAIL)
    params, distributions = choices.of(trial.architecture)
    began, ended = (time.astimezone().replace(tzinfo=None) for time in times)  # Optuna's times have no zone
    return FrozenTrial(
        number=trial.number,
        trial_id=trial.number,
        state=state,
        value=None,
        values=[trial.metrics[objective.metric] for objective in objectives] if scored else None,
        datetime_start=None if state is TrialState.WAITING else began,
        datetime_complete=ended if state.is_finished() else None,
        params=params,
        distributions=distributions,
        user_attrs=_attributes(trial),
        system_attrs={},
        intermediate_values=_by_epoch(epochs, objectives[0].metric),
    )


def _by_epoch(epochs: Points, metric: str) -> dict[int, float]:
    values = ((epoch, metrics.get(metric)) for epoch, metrics in epochs)
    return {epoch: value for epoch, value in values if value is not None}


def _attributes(trial: Trial) -> dict[str, Any]:
    found: dict[str, Any] = {name: plain_number(value) for name, value in trial.metrics.items()}
    found |= {"status": str(trial.status), "round": trial.round, "epochs": trial.epochs, "seed": trial.seed}
    found |= {"error": trial.error} if trial.error else {}
    found |= {"replayed_from": trial.replayed_from} if trial.replayed_from is not None else {}
    return found
