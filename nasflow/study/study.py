"""A study: the durable record of one search, which any number of processes can read and one controller extends."""

import difflib
import json
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from pydantic import ValidationError
from pydantic_core import PydanticSerializationError
from sqlalchemy import func, select, update
from sqlalchemy.orm import Session

from nasflow.clean_text import clean_text
from nasflow.config.search import SearchConfig
from nasflow.errors import StudyError
from nasflow.study.attempts import AttemptLog
from nasflow.study.base import best_first, now
from nasflow.study.database.store import AttemptRow, MemberRow, RoundRow, Store, StudyRow, TrialRow
from nasflow.study.database.store_url import StoreUrl
from nasflow.study.lease import Controller, Lease, holder_of
from nasflow.study.records import AttemptKind, AttemptState, StudyInfo
from nasflow.study.rounds import RoundLog
from nasflow.study.trials import TrialLog
from nasflow.trial import TrialStatus

FIXED_KEYS = ("space", "evaluator", "objectives", "seed")
_CHANGES_NO_RESULT = ("evaluator.test_data", *(f"evaluator.parallel.{key}" for key in ("strategy", "devices", "nodes")))


class UnreadableStudyError(StudyError):
    """This nasflow can't read a study's config; others of the store are unaffected."""


class Study(TrialLog, AttemptLog, RoundLog):
    """One study. Every public method is one short transaction and may be called from any thread."""

    @classmethod
    def open(cls, config: SearchConfig, lease: Lease | None = None) -> "Study":
        """Begin the study, or resume the one of this name and record the config's new budget, strategy and the like.

        Args:
            lease: claimed for the study: only its holder may write. Nothing changes if another controller holds it.

        Raises:
            StudyError: `space`, `evaluator`, `objectives` or `seed` differ from those on record, or `work_dir` or
                `budget.rounds_ahead` do although there are trials; or another controller holds the study; or the store
                can't be used.
        """
        recorded = _to_json(config)
        store = Store(config.store, create=True)
        try:
            with store.write(config.name) as session:
                row = session.scalar(select(StudyRow).where(StudyRow.name == config.name))
                if row is None:
                    row = StudyRow(name=config.name, config=recorded, created_at=now())
                    session.add(row)
                    session.flush()
                else:
                    _refuse_changes(session, row, config, recorded)
                    _forget_tests(session, row, recorded)
                    row.config = recorded
                if lease is not None:
                    lease.claim(store, session, row.id, config.name)
            return cls(store, row.id, config, lease)
        except BaseException:
            store.close()
            raise

    @classmethod
    def load(cls, store_url: StoreUrl, name: str) -> "Study":
        """Load the study of this name, with its recorded config.

        Raises:
            StudyError: there is none, or the store can't be used.
            UnreadableStudyError: its config can't be read.
        """
        name = clean_text(name)  # one that is not UTF-8 can't be asked for, and is no study's
        store = Store(store_url)
        try:
            with store.read() as session:
                row = session.scalar(select(StudyRow).where(StudyRow.name == name))
                names = [] if row else session.scalars(select(StudyRow.name).order_by(StudyRow.name)).all()
            if row is None:
                near = difflib.get_close_matches(name, names, n=3) or names[:10]
                raise StudyError(f"there is no study '{name}' in the store; it has {', '.join(near) or 'none'}")
            return cls(store, row.id, _from_json(row, store_url))
        except BaseException:
            store.close()
            raise

    @property
    def created_at(self) -> datetime:
        """When the study was begun, which distinguishes it from one of the same name in another store."""
        with self._read() as session:
            return session.get_one(StudyRow, self._id).created_at

    @property
    def generation(self) -> int:
        """How many controllers have held the study before the one that opened it here; 0 without a lease."""
        return 0 if self._lease is None else self._lease.generation

    @property
    def copies(self) -> str:
        """The folder of its checkpoints below `checkpoint.url`; for a study that was opened with a lease.

        It names when the study was begun, so that another study of the same name has another folder.
        """
        began = f"@{self.created_at:%Y%m%dT%H%M%S%f}" if self._lease is not None and self._lease.own_copies else ""
        return f"{self.name}{began}"

    def controller(self) -> Controller | None:
        """Return the study's live controller; None if it has none, or its controller died or let its lease expire."""
        with self._read() as session:
            holder = holder_of(self._store, session, self._id)
        return None if holder is None or holder.free else holder

    def deserted_by(self) -> Controller | None:
        """Return a controller that died or let its lease expire without releasing the study; None if there is none."""
        with self._read() as session:
            holder = holder_of(self._store, session, self._id)
        return holder if holder is not None and holder.free else None

    def close(self) -> None:
        """Close the connections to the store."""
        self._store.close()


def list_studies(store_url: StoreUrl) -> list[StudyInfo]:
    """Return all studies of a store, oldest first. Raises StudyError if the store can't be used."""
    store = Store(store_url)
    try:
        with store.read() as session:
            return [
                _info(session, row, store_url) for row in session.scalars(select(StudyRow).order_by(StudyRow.id)).all()
            ]
    finally:
        store.close()


def study_names(store_url: StoreUrl) -> list[str]:
    """Return the names of all studies of a store, oldest first. Raises StudyError if the store can't be used."""
    store = Store(store_url)
    try:
        with store.read() as session:
            return list(session.scalars(select(StudyRow.name).order_by(StudyRow.id)))
    finally:
        store.close()


def _info(session: Session, row: StudyRow, store_url: StoreUrl) -> StudyInfo:
    of_study = TrialRow.study_id == row.id
    known = session.execute(select(TrialRow.status, func.count()).where(of_study).group_by(TrialRow.status)).tuples()
    counts = dict.fromkeys(TrialStatus, 0) | dict(known.all())
    rounds = session.scalar(select(func.count()).where(RoundRow.study_id == row.id)) or 0
    try:
        objective = _from_json(row, store_url).objectives[0]
    except UnreadableStudyError as error:
        return StudyInfo(row.name, row.created_at, rounds, counts, None, None, str(error))
    values = select(TrialRow.value).where(of_study, TrialRow.value.is_not(None))
    best = session.scalar(values.order_by(best_first(objective)).limit(1))
    return StudyInfo(row.name, row.created_at, rounds, counts, objective, best)


def _to_json(config: SearchConfig) -> dict[str, Any]:
    """Return the config as recorded. `store` is left out: it may hold a password, and a database can move."""
    try:
        values: dict[str, Any] = config.model_dump(mode="json", exclude={"store"})
        json.dumps(config.model_dump(), default=str, allow_nan=False)  # the line above turns infinity into null
    except (PydanticSerializationError, ValueError) as error:
        raise StudyError(f"the config of '{config.name}' can't be recorded as JSON: {error}") from None
    return values


def _from_json(row: StudyRow, store_url: StoreUrl) -> SearchConfig:
    try:
        return SearchConfig.model_validate({**row.config, "store": store_url})
    except ValidationError as error:
        where = ".".join(str(step) for step in error.errors()[0]["loc"])
        raise UnreadableStudyError(
            f"study '{row.name}': this nasflow can't read the config on record, at '{where}'; "
            "use the version that wrote it"
        ) from None


def _refuse_changes(session: Session, row: StudyRow, config: SearchConfig, values: dict[str, Any]) -> None:
    """Raise StudyError for the first fixed key that differs from the record."""
    recorded = _to_json(_from_json(row, config.store))
    has_trials = session.scalar(select(TrialRow.id).where(TrialRow.study_id == row.id).limit(1)) is not None
    fixed = {key: (recorded[key], values[key]) for key in (*FIXED_KEYS, *(["work_dir"] if has_trials else []))}
    if has_trials:  # which results each round has known
        fixed["budget.rounds_ahead"] = recorded["budget"]["rounds_ahead"], values["budget"]["rounds_ahead"]
    for key, (known, new) in fixed.items():
        for path, before, after in _differences(key, known, new):
            if path.startswith(_CHANGES_NO_RESULT):
                continue
            raise StudyError(
                f"study '{row.name}': {path} is {before} on record, {after} in the config; "
                "set it back, or give the search another name"
            )


def _forget_tests(session: Session, row: StudyRow, values: dict[str, Any]) -> None:
    """Drop scores on test data, and jobs that compute some, if the config has test data that are not on record.

    They may be those of the scores all the same, if the record has none because the config before had none.
    """
    known, new = (config["evaluator"].get("test_data") for config in (row.config, values))
    if new is None or known == new:
        return
    objectives = {objective["metric"] for objective in values["objectives"]}
    tests = AttemptRow.study_id == row.id, AttemptRow.kind == AttemptKind.TEST
    tested = select(MemberRow.trial_id).join(AttemptRow, AttemptRow.id == MemberRow.attempt_id).where(*tests)
    for trial in session.scalars(select(TrialRow).where(TrialRow.id.in_(tested))):
        known_metrics = (trial.metrics or {}).items()
        trial.metrics = {name: v for name, v in known_metrics if name in objectives or not name.startswith("test_")}
    unfinished = AttemptRow.state.in_([state for state in AttemptState if not state.finished])
    session.execute(update(AttemptRow).where(*tests, unfinished).values(state=AttemptState.CANCELLED))


def _differences(path: str, before: Any, after: Any) -> Iterator[tuple[str, str, str]]:
    """Yield the dotted path and both values, as JSON, wherever two JSON values differ."""
    if isinstance(before, dict) and isinstance(after, dict):
        pairs = [
            (str(key), before.get(key, _ABSENT), after.get(key, _ABSENT)) for key in [*before, *(after.keys() - before)]
        ]
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = [(str(index), one, other) for index, (one, other) in enumerate(zip(before, after, strict=True))]
    else:
        texts = [value if value is _ABSENT else json.dumps(value, sort_keys=True) for value in (before, after)]
        if texts[0] != texts[1] and not _is_written_number(before, after):
            yield path, texts[0], texts[1]
        return
    for key, one, other in pairs:
        yield from _differences(f"{path}.{key}", one, other)


def _is_written_number(before: Any, after: Any) -> bool:
    """Whether the text on record is this number: `1e-3` was read as text by an earlier version."""
    try:
        return isinstance(before, str) and isinstance(after, float) and float(before) == after
    except ValueError:
        return False


_ABSENT = "absent"
