"""`nasflow export`: writes trained models into folders, and trials into an Optuna study."""

import warnings
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import create_engine, inspect
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, SQLAlchemyError

from nasflow.config.secret.secret_url import hide_passwords, without_passwords
from nasflow.errors import UserError
from nasflow.report.choices import OptunaChoices, domains_of, space_domains
from nasflow.report.html.parts import config_yaml
from nasflow.report.optuna.store import add_trials
from nasflow.report.optuna.trials import optuna_trial
from nasflow.report.text import error_headline
from nasflow.space.domain import Domain
from nasflow.study.base import chunks
from nasflow.study.database.store import SchemaRow
from nasflow.study.study import Study
from nasflow.trial import Trial, TrialStatus

from .console import console, score_command

if TYPE_CHECKING:
    import optuna

_AT_ONCE = 500  # trials for which the epochs are read together


def export_models(study: Study, out: Path, top: int) -> None:
    """Write the trained models of the `top` best architectures, each into its own folder.

    Raises:
        UserError: nothing is scored yet, or a folder can't be written.
    """
    from ..result import BestTrial  # noqa: PLC0415 - slow

    best = study.best_architectures(top)
    if not best:
        raise UserError(f"study '{study.name}' has no scored trial to export yet")
    for rank, trial in enumerate(best, start=1):
        folder = BestTrial(study.config, trial).export(out / f"{rank:02d}-trial-{trial.number}")
        command = score_command(folder, study.config.base_dir)
        console().print(f"trial {trial.number} → {folder}; score it with: {command}", soft_wrap=True)


def export_to_optuna(study: Study, url: str) -> None:
    """Write all trials into a new Optuna study of the same name.

    Raises:
        UserError: the database can't be used, holds studies of nasflow, or has an Optuna study of that name.
    """
    import optuna  # noqa: PLC0415 - slow

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    shown = _shown(url)
    try:
        _refuse_store(url, shown)
        count = _copy(study, _open_storage(url, shown))
    except optuna.exceptions.DuplicatedStudyError:
        raise UserError(
            f"--optuna: {shown} has a study '{study.name}' already: name another database, or remove that study with "
            f"'optuna delete-study --study-name {study.name} --storage {shown}'"
        ) from None
    except (ImportError, SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        reason = hide_passwords(" ".join(str(getattr(error, "orig", None) or error).split()), url)
        raise UserError(f"--optuna: {shown} can't be used: {reason}") from error
    console().print(f"{count} trials → {shown}; look at them with: optuna-dashboard {shown}", soft_wrap=True)


def _refuse_store(url: str, shown: str) -> None:
    """Raise UserError if a database holds studies of nasflow: Optuna's tables have the same names."""
    file = make_url(url).database
    if make_url(url).get_backend_name() == "sqlite" and not (file and Path(file).exists()):
        return  # asking would make it
    engine = create_engine(url)
    try:
        if inspect(engine).has_table(SchemaRow.__tablename__):
            raise UserError(f"--optuna: {shown} holds studies of nasflow: name another database, such as optuna.db")
    finally:
        engine.dispose()


def _open_storage(url: str, shown: str) -> "optuna.storages.RDBStorage":
    """Open a database of Optuna, or make it. Raises UserError if it has the tables of another version."""
    import optuna  # noqa: PLC0415 - slow

    try:
        return optuna.storages.RDBStorage(url)
    except RuntimeError as error:
        raise UserError(
            f"--optuna: {shown} has the tables of another version of Optuna: name another database ({error})"
        ) from None


def _copy(study: Study, storage: "optuna.storages.RDBStorage") -> int:
    import optuna  # noqa: PLC0415 - slow

    objectives = study.config.objectives
    directions = [objective.direction for objective in objectives]
    copy = optuna.create_study(study_name=study.name, storage=storage, directions=directions)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            copy.set_metric_names([objective.metric for objective in objectives])
        copy.set_user_attr("nasflow config", config_yaml(study.config))
        return add_trials(storage, study.name, _trials(study))
    except BaseException:
        optuna.delete_study(study_name=study.name, storage=storage)
        raise


def _trials(study: Study) -> Iterator["optuna.trial.FrozenTrial"]:
    trials = study.trials()
    choices = OptunaChoices(domains_of([trial.architecture for trial in trials], _known_domains(study, trials)))
    times, began = _times(study), study.created_at
    for some in chunks(trials, _AT_ONCE):
        epochs = study.epochs([trial.number for trial in some])
        for trial in some:
            points = [(record.epoch, record.metrics) for record in epochs[trial.number]]
            trained = trial.number if trial.replayed_from is None else trial.replayed_from
            when = times.get(trained, (began, began))
            yield optuna_trial(trial, study.config.objectives, choices, points, when)


def _known_domains(study: Study, trials: Sequence[Trial]) -> dict[str, Domain]:
    """Return the domains of the space's choices; empty if the space can't be used here."""
    from nasflow.evaluator.candidate import candidate_space  # noqa: PLC0415 - slow

    config = study.config
    try:
        space = candidate_space(config.space, config.evaluator, config.base_dir)
        fitting = [trial.architecture for trial in trials if trial.status is not TrialStatus.INVALID]
        return space_domains(space, fitting)
    except Exception as error:  # the user's own code, which may have moved or changed since
        why = error_headline(f"{type(error).__name__}: {error}")
        console().print(f"The space can't be used here, so the ranges of choices are guessed ({why}).", soft_wrap=True)
        return {}


def _times(study: Study) -> dict[int, tuple[datetime, datetime]]:
    """Return for each trial when its first job began and when its last one ended."""
    found: dict[int, tuple[datetime, datetime]] = {}
    for attempt in study.attempts():
        if attempt.started_at is None:
            continue
        ended = attempt.ended_at or attempt.started_at
        first = next((ending.started_at for ending in attempt.endings if ending.started_at), attempt.started_at)
        for trial in attempt.members:
            before = found.get(trial, (first, ended))
            found[trial] = (min(before[0], first), max(before[1], ended))
    return found


def _shown(url: str) -> str:
    """Return a database URL without its password, for messages."""
    try:
        make_url(url)
    except ArgumentError:
        raise UserError("--optuna: not a database URL; give one such as sqlite:///optuna.db") from None
    return without_passwords(url)
