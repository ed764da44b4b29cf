"""The base class of a study's parts: its database, its row, and the conversion of rows to records."""

import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import islice
from typing import Any, TypeVar

from sqlalchemy import UnaryExpression, func, select, update
from sqlalchemy.orm import Session

from nasflow.config.search import Objective, SearchConfig
from nasflow.errors import StudyError
from nasflow.space.architecture import Architecture
from nasflow.study.database.store import RoundRow, Store, TrialRow
from nasflow.study.lease import Lease
from nasflow.study.records import RoundState
from nasflow.trial import Trial, TrialStatus

SCORED = tuple(status for status in TrialStatus if status.scored)
FINISHED = tuple(status for status in TrialStatus if status.finished)

OF_TRIAL = tuple(getattr(TrialRow, name) for name in Trial.model_fields)

T = TypeVar("T")


def now() -> datetime:
    """Return the current time, in UTC."""
    return datetime.now(UTC)


def chunks(values: Iterable[T], size: int = 500) -> Iterator[list[T]]:
    """Yield `values` in lists of at most `size`: databases limit the values in one IN (...)."""
    rest = iter(values)
    while chunk := list(islice(rest, size)):
        yield chunk


def best_first(objective: Objective) -> UnaryExpression[float | None]:
    """Return the order of trials by a study's first objective."""
    return TrialRow.value.desc() if objective.direction == "maximize" else TrialRow.value.asc()


def to_trial(row: TrialRow) -> Trial:
    """Convert a row to its record."""
    return trial_of([getattr(row, name) for name in Trial.model_fields])


def trial_of(columns: Sequence[Any]) -> Trial:
    """Return the record with these values of OF_TRIAL, which take less time to read than whole rows."""
    values = dict(zip(Trial.model_fields, columns, strict=True))
    return Trial(**values | {"architecture": Architecture(values["architecture"])})


class StudyBase:
    """One study in an open store. Every public method is one short transaction and may be called from any thread.

    With a lease, each method that writes raises LeaseLostError once another controller has taken the study over.
    """

    def __init__(self, store: Store, study_id: int, config: SearchConfig, lease: Lease | None = None):
        self._store = store
        self._lease = lease
        self._id = study_id
        self._config = config
        # By round that runs here: monotonic time at which it would have begun; None while an earlier one counts.
        self._clocks: dict[int, float | None] = {}

    @property
    def config(self) -> SearchConfig:
        """The config on record when this object was made."""
        return self._config

    @property
    def name(self) -> str:
        """The study's name."""
        return self._config.name

    @contextmanager
    def _read(self) -> Iterator[Session]:
        with self._store.read() as session:
            yield session

    @contextmanager
    def _write(self) -> Iterator[Session]:
        with self._store.write(self.name) as session:
            if self._lease is not None:
                self._lease.check(session)
            yield session

    def _trial_rows(self, session: Session, numbers: Iterable[int]) -> dict[int, TrialRow]:
        """Return the rows of these trials by number. Raises StudyError for a number that does not exist."""
        wanted = list(dict.fromkeys(numbers))
        rows: dict[int, TrialRow] = {}
        for chunk in chunks(wanted):
            found = session.scalars(select(TrialRow).where(TrialRow.study_id == self._id, TrialRow.number.in_(chunk)))
            rows.update({row.number: row for row in found})
        self._refuse_missing(session, wanted, rows)
        return rows

    def _refuse_missing(self, session: Session, wanted: Iterable[int], found: Container[int]) -> None:
        if missing := [number for number in wanted if number not in found]:
            count = session.scalar(select(func.count()).where(TrialRow.study_id == self._id))
            raise StudyError(f"study '{self.name}' has no trial {missing[0]}; it has {count}, numbered from 0")

    def _start_clock(self, row: RoundRow) -> None:
        """Count time for a round from now on, beyond its seconds so far; or once earlier ones that run here ended."""
        waits = any(number < row.number for number in list(self._clocks))
        self._clocks[row.number] = None if waits else time.monotonic() - row.seconds

    def _stop_clock(self, session: Session, number: int) -> None:
        """Count no more time for a round, but for the one that runs after it."""
        self._clocks.pop(number, None)
        following = min(self._clocks, default=None)
        if following is not None and self._clocks[following] is None:
            self._clocks[following] = time.monotonic() - self._round_row(session, following).seconds

    def _count_time(self, session: Session) -> None:
        """Record the seconds of the rounds that run here, up to now. The time of day, which can be set, has no part."""
        for number, began in list(self._clocks.items()):
            if began is not None:
                running = update(RoundRow).where(RoundRow.study_id == self._id, RoundRow.state == RoundState.RUNNING)
                seconds = time.monotonic() - began
                session.execute(running.where(RoundRow.number == number).values(seconds=seconds))

    def _round_row(self, session: Session, number: int) -> RoundRow:
        row = session.get(RoundRow, (self._id, number))
        if row is None:
            raise StudyError(f"study '{self.name}' has no round {number}")
        return row

    def _in_order(self, session: Session, numbers: Sequence[int]) -> list[Trial]:
        """Return these trials, in this order. Raises StudyError for a number that does not exist."""
        trials: dict[int, Trial] = {}
        for chunk in chunks(dict.fromkeys(numbers)):
            query = select(*OF_TRIAL).where(TrialRow.study_id == self._id, TrialRow.number.in_(chunk))
            trials.update({trial.number: trial for trial in map(trial_of, session.execute(query))})
        self._refuse_missing(session, numbers, trials)
        return [trials[number] for number in numbers]
