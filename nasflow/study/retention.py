"""Find the studies of a store that are old enough to remove, and remove one with all its files."""

import fnmatch
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from nasflow.config.secret.secret_url import hide_passwords
from nasflow.config.secret.secrets import reveal
from nasflow.errors import StudyError
from nasflow.study.database.store import (
    AttemptRow,
    EpochRow,
    LeaseRow,
    MemberRow,
    RoundRow,
    RunRow,
    Store,
    StudyRow,
    TrialRow,
)
from nasflow.study.database.store_url import StoreUrl
from nasflow.study.folder import MARK, is_claimed
from nasflow.study.lease import Lease
from nasflow.study.study import Study


@dataclass(frozen=True)
class OldStudy:
    """A study that may be removed, and when something last happened in it."""

    name: str
    active_at: datetime


def old_studies(store_url: StoreUrl, pattern: str, now: datetime, older_than: timedelta, keep: int) -> list[OldStudy]:
    """Return the studies that may be removed, the oldest first.

    Args:
        store_url: of their database.
        pattern: of their names, as in a shell: `nightly-*`.
        now: the time.
        older_than: how long nothing must have happened in a study.
        keep: how many of the pattern's newest studies stay, whatever their age.

    Raises:
        StudyError: the store can't be used.
    """
    store = Store(store_url)
    try:
        with store.read() as session:
            rows = session.execute(select(StudyRow.id, StudyRow.name, StudyRow.created_at)).tuples().all()
            known = [
                OldStudy(name, max([created, *_signs_of_life(session, key)]))
                for key, name, created in rows
                if fnmatch.fnmatchcase(name, pattern)
            ]
    finally:
        store.close()
    newest_first = sorted(known, key=lambda study: study.active_at, reverse=True)
    return [study for study in reversed(newest_first[keep:]) if now - study.active_at >= older_than]


def remove_study(
    store_url: StoreUrl,
    name: str,
    before: Callable[[Study], object] = lambda study: None,
    end_jobs: Callable[[Study], object] = lambda study: None,
) -> None:
    """Remove a study: its checkpoints at a URL, its folder, its record. Can be repeated after an interruption.

    Of a study without trials whose folder is another's, only the record is removed.

    Args:
        store_url: of its database.
        name: of the study.
        before: called before anything is removed; if it raises, the study stays as it is.
        end_jobs: called if its last controller died; must end its jobs, which could still write to the folder.

    Raises:
        StudyError: a controller holds it, or it has trials and its folder is not on this machine or another study's,
            or its checkpoints at a URL can't be removed.
    """
    found = Study.load(store_url, name)
    try:
        deserted, config = found.deserted_by() is not None, found.config
    finally:
        found.close()
    lease = Lease()
    study = Study.open(config, lease)
    try:
        with lease.kept(lambda: None):
            folder = own_folder(study)
            if folder is None:
                erase_record(store_url, name, lease)
                return
            before(study)
            if deserted:
                end_jobs(study)
            lease.refuse_lost()
            _remove_copies(study)
            _empty(folder)
            erase_record(store_url, name, lease)
            _remove_folder(folder)
    finally:
        study.close()


def _signs_of_life(session: Session, key: int) -> Iterator[datetime]:
    """Yield when rounds were begun, resumed and ended, and when the last epoch was recorded."""
    columns = (RoundRow.started_at, RoundRow.resumed_at, RoundRow.ended_at)
    for column in columns:
        if (at := session.scalar(select(func.max(column)).where(RoundRow.study_id == key))) is not None:
            yield at
    epochs = select(func.max(EpochRow.recorded_at)).join(TrialRow, TrialRow.id == EpochRow.trial_id)
    if (at := session.scalar(epochs.where(TrialRow.study_id == key))) is not None:
        yield at


def own_folder(study: Study) -> Path | None:
    """Return the study's folder; None if it is another study's and this one has no trials, and so no files.

    Raises:
        StudyError: the study has trials, and its folder is not on this machine or is another study's.
    """
    folder, has_trials = study.config.study_dir, bool(study.trials(limit=1))
    if folder.exists() and not is_claimed(folder, study.name, study.created_at):
        if not has_trials:
            return None
        raise StudyError(f"study '{study.name}': {folder} is another study's: move it away, or remove the study there")
    if not folder.exists() and has_trials:
        raise StudyError(f"study '{study.name}': this machine does not have its folder {folder}: remove it there")
    return folder


def _remove_copies(study: Study) -> None:
    """Remove its checkpoints at `checkpoint.url`."""
    if study.config.checkpoint.url is None:
        return
    import fsspec  # noqa: PLC0415 - slow

    url = reveal(study.config.checkpoint.url, "checkpoint.url")
    place = f"{url.rstrip('/')}/{study.copies}"
    try:
        files, path = fsspec.core.url_to_fs(place)
        if files.exists(path):
            files.rm(path, recursive=True)
    except Exception as error:  # each storage has its own
        why = hide_passwords(f"its checkpoints at {place} can't be removed: {error}", url)
        raise StudyError(f"study '{study.name}': {why}") from error


def _empty(folder: Path) -> None:
    """Remove everything in the folder but the mark, which names its study until the record is removed."""
    for part in folder.iterdir() if folder.exists() else ():
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        elif part.name != MARK:
            part.unlink()


def _remove_folder(folder: Path) -> None:
    """Remove an emptied folder, or the link to it."""
    (folder / MARK).unlink(missing_ok=True)  # first: it would keep the name from a new study if the rest fails
    if folder.is_symlink():
        folder.unlink()
    elif folder.exists():
        shutil.rmtree(folder)


def erase_record(store_url: StoreUrl, name: str, lease: Lease) -> None:
    """Remove all rows of a study, and no files. Raises LeaseLostError if another controller has taken the study."""
    store = Store(store_url)
    try:
        with store.write(name) as session:
            lease.check(session)
            key = session.scalars(select(StudyRow.id).where(StudyRow.name == name)).one()
            trials = select(TrialRow.id).where(TrialRow.study_id == key)
            session.execute(delete(MemberRow).where(MemberRow.trial_id.in_(trials)))
            session.execute(delete(EpochRow).where(EpochRow.trial_id.in_(trials)))
            for table in (AttemptRow, TrialRow, RoundRow, LeaseRow):
                session.execute(delete(table).where(table.study_id == key))
            session.execute(delete(RunRow).where(RunRow.study == name))
            session.execute(delete(StudyRow).where(StudyRow.id == key))
    finally:
        store.close()
