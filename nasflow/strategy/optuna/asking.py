"""Architectures from Optuna's studies, and as Optuna's trials: the space is Optuna's define-by-run objective."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import optuna
import torch
from optuna.distributions import BaseDistribution
from optuna.trial import FrozenTrial, TrialState

from nasflow.errors import InvalidArchitecture, SpaceError
from nasflow.space.architecture import Architecture
from nasflow.space.domain import Domain
from nasflow.space.pick import Pick
from nasflow.space.space import Space
from nasflow.strategy.optuna.params import distributions, encode, suggest
from nasflow.system.log_level import log_level

_TRIES = 1000  # before a sampler that proposes only invalid architectures is given up


def quiet() -> AbstractContextManager[None]:
    """Silence Optuna within a block: it tells of every study, and warns about every conditional choice."""
    return log_level("optuna", optuna.logging.ERROR)


def make_study(sampler: optuna.samplers.BaseSampler, objectives: int) -> optuna.Study:
    """Return a study in memory that minimizes so many objectives."""
    with quiet():
        return optuna.create_study(sampler=sampler, directions=["minimize"] * objectives)


def ask(study: optuna.Study, space: Space) -> tuple[optuna.Trial, Architecture]:
    """Return a trial of the study that has begun, and its architecture. Invalid ones before it count as failed.

    Raises:
        SpaceError: 1000 in a row were invalid.
    """
    with quiet():
        for _ in range(_TRIES):
            trial = study.ask()
            try:
                return trial, space.explore(_TrialPick(trial))
            except InvalidArchitecture as error:
                last = error
                study.tell(trial, state=TrialState.FAIL)
    raise SpaceError(f"{_TRIES} proposals in a row were invalid, the last one: {last}") from last


def parameters(space: Space, architecture: Architecture) -> tuple[dict[str, Any], dict[str, BaseDistribution]]:
    """Return an architecture as Optuna's parameters, and their distributions."""
    params: dict[str, Any] = {}
    named: dict[str, BaseDistribution] = {}
    for label, domain in space.domains(architecture).items():
        of_label = distributions(label, domain)
        named |= of_label
        params |= zip(of_label, encode(domain, architecture[label]), strict=True)
    return params, named


def finished(space: Space, architecture: Architecture, values: Sequence[float]) -> FrozenTrial:
    """Return a scored trial as Optuna would have stored it, had it proposed the trial."""
    params, named = parameters(space, architecture)
    return optuna.trial.create_trial(values=list(values), params=params, distributions=named)


class _TrialPick(Pick):
    """A pick that asks Optuna."""

    def __init__(self, trial: optuna.Trial):
        super().__init__()
        self._trial = trial

    def _choose(self, label: str, domain: Domain) -> Any:
        with torch.device("cpu"):  # the space is explored on the meta device, where a sampler's own tensors are void
            return suggest(self._trial, label, domain)
