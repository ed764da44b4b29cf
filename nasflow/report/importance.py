"""Importance of choices, by Optuna's evaluator."""

import warnings
from collections.abc import Mapping, Sequence

from nasflow.config.search import Objective
from nasflow.report.choices import OptunaChoices
from nasflow.space.domain import Domain
from nasflow.trial import Trial

FEWEST = 20
"""Fewest scored trials for an estimate, because the evaluator compares the best tenth with all."""


def importances(
    trials: Sequence[Trial], objectives: Sequence[Objective], domains: Mapping[str, Domain]
) -> dict[str, dict[str, float]]:
    """Return how much each label decides whether a trial is among the best tenth, for each objective's metric.

    The values are shares, the largest first, by Optuna's PED-ANOVA (Watanabe, Bansal and Hutter 2023), which also rates
    choices that only some trials have.

    Args:
        trials: scored trials, at least FEWEST.
        objectives: objectives with a metric in every trial.
        domains: domains of all labels of the trials.
    """
    import optuna  # noqa: PLC0415 - slow

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    choices = OptunaChoices(domains)
    chosen = [choices.of(trial.architecture) for trial in trials]
    found: dict[str, dict[str, float]] = {}
    for objective in objectives:
        values = [trial.metrics[objective.metric] for trial in trials]
        study = optuna.create_study(direction=objective.direction)
        study.add_trials(
            optuna.trial.create_trial(value=value, params=params, distributions=distributions)
            for value, (params, distributions) in zip(values, chosen, strict=True)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about experimental features of Optuna, and choices that few trials have
            evaluator = optuna.importance.PedAnovaImportanceEvaluator()
            shares = optuna.importance.get_param_importances(study, evaluator=evaluator)
        found[objective.metric] = choices.by_label(shares)
    return found
