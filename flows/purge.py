"""Removes the old studies of a store, with their folders and checkpoints."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from nasflow.clean_text import error_message
from nasflow.config.job_secrets import JobSecrets, job_secrets
from nasflow.config.search import SearchConfig
from nasflow.errors import NasflowError, StudyError, UserError
from nasflow.study.database.store_url import StoreUrl
from nasflow.study.retention import OldStudy, old_studies, own_folder, remove_study
from nasflow.study.study import Study

from .server.secrets import use_prefect_blocks

Say = Callable[[str], object]


@dataclass(frozen=True)
class Purge:
    """Which studies to remove, and how.

    Attributes:
        pattern: pattern of study names, as in a shell: `nightly-*`.
        older_than_days: remove only studies without activity for this many days.
        keep: keep this many of the newest, whatever their age.
        export: first export the best model of each study into a folder of its name in this folder.
        dry_run: only say what would be removed.
    """

    pattern: str
    older_than_days: float | None = None
    keep: int | None = None
    export: Path | None = None
    dry_run: bool = False


def purge_studies(store: StoreUrl, purge: Purge, say: Say) -> bool:
    """Remove old studies, except those that a controller holds.

    Args:
        store: SQLAlchemy URL.
        purge: which studies to remove.
        say: called with a line about each study.

    Returns:
        Whether all of them were removed, not counting those that a controller holds.

    Raises:
        UserError: neither an age nor a number to keep is given, or the store can't be used.
    """
    use_prefect_blocks()
    if purge.older_than_days is None and purge.keep is None:
        raise UserError("nothing limits which studies are removed: give --older-than DAYS, --keep COUNT, or both")
    older_than = timedelta(days=purge.older_than_days or 0)
    old = old_studies(store, purge.pattern, datetime.now(UTC), older_than, purge.keep or 0)
    return all([_purge_one(store, study, purge, say) for study in old])  # noqa: C419 - all of them, whatever each returns


def _purge_one(store: StoreUrl, old: OldStudy, purge: Purge, say: Say) -> bool:
    name, since = old.name, f"last active {old.active_at:%Y-%m-%d %H:%M} UTC"
    try:
        study = Study.load(store, name)
    except StudyError as error:  # it can't be read, or another process has removed it
        say(f"{name}: could not be removed: {error}")
        return False
    with closing(study):
        holder = study.controller()
        why_not = _why_not(study) if purge.dry_run else ""
    if holder is not None:
        say(f"{name}: stays, {holder} runs it")
        return True
    if purge.dry_run:
        say(f"{name}: could not be removed: {why_not}" if why_not else f"{name}: would be removed, {since}")
        return not why_not
    exported: list[Path] = []

    def before(study: Study) -> None:
        if purge.export is None:
            return
        try:
            exported.extend(_export(study, purge.export / name))
        except (NasflowError, OSError):
            raise
        except Exception as error:  # its model is the user's own code
            raise StudyError(f"its best model can't be exported: {error_message(error)}") from error

    try:
        remove_study(store, name, before, lambda study: end_jobs(study.config))
    except (NasflowError, OSError) as error:
        say(f"{name}: could not be removed: {error}")
        return False
    say(f"{name}: removed, {since}" + "".join(f"; its best model is in {folder}" for folder in exported))
    return True


def _why_not(study: Study) -> str:
    """Return why the study's folder can't be removed here; empty if it can."""
    try:
        own_folder(study)
    except (NasflowError, OSError) as error:
        return str(error)
    return ""


def _export(study: Study, out: Path) -> list[Path]:
    """Export the best trial and return its folder; nothing if no trial was scored."""
    from .result import BestTrial  # noqa: PLC0415 - slow

    return [BestTrial(study.config, trial).export(out) for trial in study.leaderboard(1)]


def end_jobs(config: SearchConfig) -> None:
    """End a study's jobs and remove what they were given, by the names of its secrets: their texts may be unknown."""
    from .pool.make import make_service  # noqa: PLC0415 - slow

    known = job_secrets(config)
    secrets = JobSecrets(known.withheld, known.needed)
    make_service(config.training_service, config.study_dir, config.base_dir, secrets).cleanup()
