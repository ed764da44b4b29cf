"""Recurring searches: which study a run of a deployment works on, its budget there, and its warm start."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from nasflow.config.search import Budget, HyperbandConfig, SearchConfig
from nasflow.errors import SpaceError
from nasflow.pareto import pareto_ranks
from nasflow.space.architecture import Architecture
from nasflow.strategy.scores import losses
from nasflow.study.database.store import RunRow, Store, StudyRow
from nasflow.study.database.store_url import StoreUrl
from nasflow.study.records import RoundState
from nasflow.study.study import Study
from nasflow.trial import STOP_AFTER, Trial, without_stop

_DATE = r"-\d{8}-\d{4}(-\d+)?"
_CANDIDATES = 200  # trials of each study to look at, because the best may not fit the space any more


def config_of_run(config: SearchConfig, run: str, at: datetime) -> SearchConfig:
    """Return the config for a run of a recurring search: with its study's name, and without `recurring`.

    The first call for a run records which study it works on, so that the run finds it again when it is retried or
    resumed.

    Args:
        config: of the deployment.
        run: a unique name of the run.
        at: when it was due, for the name of a new study.

    Raises:
        UserError: the store can't be used, or the space of a warm start can't be explored.
    """
    if config.recurring is None:
        return config
    store = Store(config.store, create=True)
    try:
        with store.write(config.name) as session:
            row = session.get(RunRow, run)
            if row is None:
                row = RunRow(run=run, study=config.name)
                if config.recurring.study == "continue":
                    row.budget = _budget_from_here(store, session, config).model_dump()
                else:
                    row.study = _new_name(session, config.name, at)
                session.add(row)
            name, budget = row.study, row.budget
        values = {"name": name, "recurring": None}
        if budget is not None:
            return config.model_copy(update={**values, "budget": Budget.model_validate(budget)})
        if config.recurring.study == "warm_start":
            known = _recorded_beginning(store, name)
            first = best_of_earlier(store, config, config.recurring.best) if known is None else known
            return config.model_copy(update={**values, "begin_with": first})
        return config.model_copy(update=values)
    finally:
        store.close()


def runs_of_study(store_url: StoreUrl, name: str) -> list[str]:
    """Return the runs that work on a study by `config_of_run`."""
    store = Store(store_url)
    try:
        with store.read() as session:
            return list(session.scalars(select(RunRow.run).where(RunRow.study == name)))
    finally:
        store.close()


def best_of_earlier(store: Store, config: SearchConfig, count: int) -> list[dict[str, Any]]:
    """Return a warm start's first architectures: the config's `begin_with`, then the `count` best of earlier studies.

    Earlier ones are those of the same name, dated or not, with the same objectives. Architectures
    that do not fit the present space are left out. With asha, hyperband or bohb each begins at the first rung.
    """
    from nasflow.evaluator.candidate import candidate_space  # noqa: PLC0415 - slow

    space = candidate_space(config.space, config.evaluator, config.base_dir)
    has_rungs = isinstance(config.strategy, HyperbandConfig)
    kind = without_stop if has_rungs else Architecture
    found = {kind(Architecture(values)): values for values in config.begin_with}
    wanted = len(found) + count
    for trial in _ranked(_best_trials(store, config), config):
        if len(found) >= wanted:
            break
        try:
            domains = space.domains(trial.architecture)
        except SpaceError:
            continue
        first_rung = {STOP_AFTER: min(domains[STOP_AFTER].values())} if has_rungs else {}
        found.setdefault(kind(trial.architecture), {**trial.architecture, **first_rung})
    return list(found.values())


def _best_trials(store: Store, config: SearchConfig) -> list[Trial]:
    """Return the best trials of each study with the config's name, dated or not, and its objectives."""
    with store.read() as session:
        rows = session.execute(select(StudyRow.id, StudyRow.name, StudyRow.config).order_by(StudyRow.id)).tuples().all()
    objectives = [objective.model_dump() for objective in config.objectives]
    of_name = re.compile(re.escape(config.name) + f"({_DATE})?")
    trials: list[Trial] = []
    for key, name, recorded in rows:
        if of_name.fullmatch(name) and recorded.get("objectives") == objectives:
            trials += Study(store, key, config).leaderboard(_CANDIDATES)
    return trials


def _ranked(trials: Sequence[Trial], config: SearchConfig) -> list[Trial]:
    """Sort trials best first: by Pareto front, and within one by the first objective."""
    scored = [(values, trial) for trial in trials if (values := losses(trial, config.objectives)) is not None]
    ranks = pareto_ranks([values for values, _ in scored])
    order = sorted(range(len(scored)), key=lambda place: (ranks[place], scored[place][0][0], place))
    return [scored[place][1] for place in order]


def _recorded_beginning(store: Store, name: str) -> list[dict[str, Any]] | None:
    """Return the `begin_with` of a recorded study; None if there is no such study."""
    with store.read() as session:
        recorded = session.scalar(select(StudyRow.config).where(StudyRow.name == name))
    return None if recorded is None else list(recorded.get("begin_with", []))


def _budget_from_here(store: Store, session: Session, config: SearchConfig) -> Budget:
    """Return the budget of a run: what the study has spent, plus the config's budget."""
    budget = config.budget
    key = session.scalar(select(StudyRow.id).where(StudyRow.name == config.name))
    if key is None:
        return budget
    study = Study(store, key, config)
    rounds = study.rounds()
    ended = sum(record.state is not RoundState.RUNNING for record in rounds)
    hours = sum(record.seconds for record in rounds) / 3600
    larger = {
        "rounds": ended + budget.rounds,
        "trials": None if budget.trials is None else sum(study.counts().values()) + budget.trials,
        "hours": None if budget.hours is None else hours + budget.hours,
    }
    return budget.model_copy(update=larger)


def _new_name(session: Session, name: str, at: datetime) -> str:
    """Return a name with date and time in UTC that no study has, nor any recorded run."""
    dated = f"{name}-{at.astimezone(UTC):%Y%m%d-%H%M}"
    taken = {
        *session.scalars(select(StudyRow.name).where(StudyRow.name.startswith(dated, autoescape=True))),
        *session.scalars(select(RunRow.study).where(RunRow.study.startswith(dated, autoescape=True))),
    }
    names = (dated if count == 1 else f"{dated}-{count}" for count in range(1, len(taken) + 2))
    return next(free for free in names if free not in taken)
