"""The database of studies: its tables, and sessions on SQLite (WAL) or PostgreSQL."""

import json
import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, ClassVar

from pydantic_core import from_json
from sqlalchemy import (
    JSON,
    URL,
    BigInteger,
    Connection,
    DateTime,
    Dialect,
    Double,
    Engine,
    Enum,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    String,
    Text,
    TypeDecorator,
    UniqueConstraint,
    create_engine,
    event,
    func,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, InterfaceError, InternalError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, validates

from nasflow.clean_text import clean_text
from nasflow.config.secret.secret_url import hide_passwords
from nasflow.errors import StudyError
from nasflow.seeds import derive_seed
from nasflow.study.database.network_disk import network_warning
from nasflow.study.database.store_url import StoreUrl, parse_url, shown_url
from nasflow.study.records import AttemptKind, AttemptState, RoundState
from nasflow.trial import FailureKind, TrialStatus

_LOG = logging.getLogger(__name__)

SCHEMA_VERSION = 4
_CHANGES: dict[int, list[str]] = {2: ["ALTER TABLE attempts ADD COLUMN endings JSON"], 3: [], 4: []}
"""Statements that upgrade the tables to a version from the one before; new tables are created without them."""
BUSY_SECONDS = 120
"""How long a transaction waits for a database that others have locked, or for a connection of this process."""
STOPPED_SECONDS = 60
"""After which PostgreSQL ends the transaction of a process that is idle in it, so that others need not wait."""

_LOST = (OperationalError, InterfaceError, InternalError)  # what drivers raise if the database is unavailable
_SQLITE_CLOCK = (func.julianday("now") - 2440587.5) * 86400.0  # days since noon in 4714 BC, to seconds since 1970


class UtcDateTime(TypeDecorator[datetime]):
    """An aware datetime, kept as UTC without its zone, which SQLite can't hold."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert to the database's value."""
        return value.astimezone(UTC).replace(tzinfo=None) if value else None

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert from the database's value."""
        return value.replace(tzinfo=UTC) if value else None


class Base(DeclarativeBase):
    """Base of the tables."""

    type_annotation_map: ClassVar[dict[Any, Any]] = {
        dict[str, Any]: JSON(none_as_null=True),
        datetime: UtcDateTime,
        float: Double,
        StrEnum: Enum(StrEnum, native_enum=False, length=20, values_callable=lambda kind: [m.value for m in kind]),
    }


class SchemaRow(Base):
    """The single row with the version of the database's tables."""

    __tablename__ = "nasflow_schema"
    version: Mapped[int] = mapped_column(primary_key=True)


class StudyRow(Base):
    """A study and its config, without `store`."""

    __tablename__ = "studies"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str] = mapped_column(String(100), unique=True)
    config: Mapped[dict[str, Any]]
    created_at: Mapped[datetime]


class RoundRow(Base):
    """A sampling round. `seconds` is its time up to its latest recorded activity, by monotonic clocks."""

    __tablename__ = "rounds"
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    number: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    state: Mapped[RoundState]
    started_at: Mapped[datetime]
    resumed_at: Mapped[datetime]
    ended_at: Mapped[datetime | None]
    seconds: Mapped[float] = mapped_column(default=0.0)
    message: Mapped[str] = mapped_column(Text, default="")

    @validates("message")
    def _clean(self, _: str, text: str) -> str:
        return clean_text(text)


class TrialRow(Base):
    """A trial. `value` is its first objective and `parameters` that metric, both kept apart for the leaderboard."""

    __tablename__ = "trials"
    __table_args__ = (
        UniqueConstraint("study_id", "number"),
        ForeignKeyConstraint(["study_id", "round"], ["rounds.study_id", "rounds.number"]),
        Index("trials_by_round", "study_id", "round"),
        Index("trials_by_digest", "study_id", "digest"),
        Index("trials_by_value", "study_id", "value"),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"))
    number: Mapped[int]
    round: Mapped[int]
    digest: Mapped[str] = mapped_column(String(16))
    architecture: Mapped[dict[str, Any]]
    seed: Mapped[int] = mapped_column(BigInteger)
    status: Mapped[TrialStatus] = mapped_column(default=TrialStatus.SUBMITTED)
    metrics: Mapped[dict[str, Any]] = mapped_column(default=dict)
    value: Mapped[float | None]
    parameters: Mapped[float | None]
    epochs: Mapped[int] = mapped_column(default=0)
    error: Mapped[str | None] = mapped_column(Text)
    replayed_from: Mapped[int | None]

    @validates("error")
    def _clean(self, _: str, text: str | None) -> str | None:
        return text and clean_text(text)


class AttemptRow(Base):
    """One job."""

    __tablename__ = "attempts"
    __table_args__ = (
        UniqueConstraint("study_id", "round", "kind", "number"),
        ForeignKeyConstraint(["study_id", "round"], ["rounds.study_id", "rounds.number"]),
    )
    id: Mapped[int] = mapped_column(primary_key=True)
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"))
    round: Mapped[int]
    kind: Mapped[AttemptKind]
    number: Mapped[int]
    state: Mapped[AttemptState] = mapped_column(default=AttemptState.PLANNED)
    failure: Mapped[FailureKind | None]
    error: Mapped[str | None] = mapped_column(Text)
    job_id: Mapped[str | None] = mapped_column(Text)
    handle: Mapped[dict[str, Any] | None]
    slot: Mapped[str | None] = mapped_column(Text)
    restarts: Mapped[int] = mapped_column(default=0)
    started_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    endings: Mapped[list[dict[str, Any]] | None] = mapped_column(JSON(none_as_null=True))

    @validates("error", "slot")
    def _clean(self, _: str, text: str | None) -> str | None:
        return text and clean_text(text)


class MemberRow(Base):
    """A trial in an attempt, at its place in the job."""

    __tablename__ = "attempt_members"
    attempt_id: Mapped[int] = mapped_column(ForeignKey("attempts.id"), primary_key=True)
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), primary_key=True, index=True)
    position: Mapped[int]


class EpochRow(Base):
    """A trial's metrics after one epoch; the primary key allows one row each."""

    __tablename__ = "epochs"
    trial_id: Mapped[int] = mapped_column(ForeignKey("trials.id"), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    metrics: Mapped[dict[str, Any]]
    seconds: Mapped[float]
    attempt_id: Mapped[int | None] = mapped_column(ForeignKey("attempts.id"))
    recorded_at: Mapped[datetime]


class LeaseRow(Base):
    """The controller that may write to a study, and until when (nasflow.study.lease). Without a token there is none."""

    __tablename__ = "leases"
    study_id: Mapped[int] = mapped_column(ForeignKey("studies.id"), primary_key=True)
    token: Mapped[str] = mapped_column(String(32))
    host: Mapped[str] = mapped_column(Text)
    process: Mapped[dict[str, Any]]  # with the generation: another column would be a new version of the tables
    since: Mapped[datetime]
    ends: Mapped[datetime]


class RunRow(Base):
    """The study of a deployment's run, and its budget there (nasflow.recurring)."""

    __tablename__ = "recurring_runs"
    run: Mapped[str] = mapped_column(String(36), primary_key=True)
    study: Mapped[str] = mapped_column(String(100), index=True)
    budget: Mapped[dict[str, Any] | None]


class Store:
    """An open database. Any number of threads may use it; every session is one transaction.

    Args:
        url: `sqlite:///FILE` or `postgresql://...`, or where a config says that to be.
        create: make the file and the tables if they are missing.

    Raises:
        ConfigError: the secret with the URL can't be read.
        StudyError: the URL is wrong, the database can't be reached, or it was written by a newer nasflow.
    """

    def __init__(self, url: StoreUrl, create: bool = False):
        self._url = parse_url(url)
        self._sqlite = self._url.get_backend_name() == "sqlite"
        if self._sqlite:
            _check_file(Path(str(self._url.database)), create)
        self._engine = _make_engine(self._url)
        try:
            with clear_errors(self._url, DBAPIError):
                self._check_schema(create)
        except BaseException:
            self.close()
            raise

    @contextmanager
    def read(self) -> Iterator[Session]:
        """Open a transaction that only reads."""
        with clear_errors(self._url, *_LOST), Session(self._engine) as session:
            yield session

    @contextmanager
    def write(self, lock: str) -> Iterator[Session]:
        """Open a transaction that is committed at the end. Those with the same `lock` wait for each other.

        SQLite has one lock for the whole file, taken by BEGIN IMMEDIATE before anything is read, so that a writer
        waits at its start instead of failing at its first change; PostgreSQL has an advisory lock for each name.
        """
        engine = self._engine.execution_options(nasflow_write=True)
        with clear_errors(self._url, *_LOST), Session(engine, expire_on_commit=False) as session, session.begin():
            if not self._sqlite:
                session.execute(select(func.pg_advisory_xact_lock(derive_seed("nasflow", lock))))
            yield session

    def clock(self, session: Session) -> datetime:
        """Return the time of the database's clock, which all its users share."""
        seconds = _SQLITE_CLOCK if self._sqlite else func.extract("epoch", func.clock_timestamp())
        return datetime.fromtimestamp(float(session.scalars(select(seconds)).one()), UTC)

    def close(self) -> None:
        """Close all connections."""
        self._engine.dispose()

    def _check_schema(self, create: bool) -> None:
        if create:
            with self.write("schema") as session:
                Base.metadata.create_all(session.connection())
                if session.scalar(select(SchemaRow.version)) is None:
                    session.add(SchemaRow(version=SCHEMA_VERSION))
        with self.read() as session:
            known = inspect(session.connection()).has_table(SchemaRow.__tablename__)
            version = session.scalar(select(SchemaRow.version)) if known else None
        if version is None:
            raise StudyError(f"store: {shown_url(self._url)} holds no nasflow studies")
        refuse_newer(self._url, version)
        if version < SCHEMA_VERSION:
            self._upgrade()

    def _upgrade(self) -> None:
        with self.write("schema") as session:
            version = session.scalars(select(SchemaRow.version)).one()  # another process may have been faster
            for change in (change for number in range(version, SCHEMA_VERSION) for change in _CHANGES[number + 1]):
                session.execute(text(change))
            Base.metadata.create_all(session.connection())
            session.execute(update(SchemaRow).values(version=SCHEMA_VERSION))


@contextmanager
def clear_errors(url: URL, *kinds: type[DBAPIError]) -> Iterator[None]:
    """Turn the driver's errors of these kinds, of a damaged file and of the pool into a StudyError without password."""
    try:
        yield
    except PoolTimeout as error:
        raise StudyError(f"store: {shown_url(url)} can't be used: no connection free in {BUSY_SECONDS} s") from error
    except DBAPIError as error:
        is_damaged = type(error.orig) is sqlite3.DatabaseError  # subclasses have other causes
        if not is_damaged and not isinstance(error, kinds):
            raise
        reason = hide_passwords(" ".join(str(error.orig).split()), url.render_as_string(hide_password=False))
        remedy = "; put back a copy of it, or name another store" if is_damaged else ""
        raise StudyError(f"store: {shown_url(url)} can't be used: {reason}{remedy}") from error


def refuse_newer(url: URL, version: int) -> None:
    """Raise StudyError if the tables have a version that this nasflow does not know."""
    if version > SCHEMA_VERSION:
        raise StudyError(
            f"store: {shown_url(url)} was written by a newer nasflow (its tables have version {version}, this one "
            f"knows up to {SCHEMA_VERSION}); upgrade nasflow"
        )


def _check_file(file: Path, create: bool) -> None:
    if create:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StudyError(f"store: can't make the folder {file.parent}: {error.strerror}") from None
        if (warning := network_warning(file)) is not None:
            _LOG.warning("store: %s; %s", *warning)
    elif not file.is_file():
        raise StudyError(f"store: there is no database {file}; run a search first, or name another store")


def _from_json(text: str) -> Any:
    """Return the value, five times as fast as the standard library, which also reads half a surrogate pair."""
    try:
        return from_json(text)
    except ValueError:
        return json.loads(text)


def _make_engine(url: URL) -> Engine:
    try:
        engine = create_engine(
            url,
            pool_pre_ping=True,
            pool_timeout=BUSY_SECONDS,
            json_serializer=lambda value: json.dumps(value, allow_nan=False),
            json_deserializer=_from_json,
        )
    except ImportError:
        raise StudyError("store: PostgreSQL needs its driver; install 'nasflow[postgresql]'") from None
    if url.get_backend_name() == "sqlite":
        event.listen(engine, "connect", _prepare_sqlite)
        event.listen(engine, "begin", _begin_sqlite)
    else:
        event.listen(engine, "connect", _prepare_postgresql)
    return engine


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    connection.isolation_level = None  # the driver's own BEGIN comes too late; _begin_sqlite sends it
    connection.execute(f"PRAGMA busy_timeout = {BUSY_SECONDS * 1000}")
    _switch_to_wal(connection)
    connection.execute("PRAGMA foreign_keys = ON")


def _switch_to_wal(connection: Any) -> None:
    """Unlike other statements, this one does not wait by itself while others use a database not yet in this mode."""
    began = time.monotonic()
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() - began > BUSY_SECONDS:
                raise
            time.sleep(0.05)


def _prepare_postgresql(connection: Any, _record: Any) -> None:
    connection.execute(f"SET lock_timeout = '{BUSY_SECONDS}s'")
    connection.execute(f"SET idle_in_transaction_session_timeout = '{STOPPED_SECONDS}s'")
    connection.commit()


def _begin_sqlite(connection: Connection) -> None:
    write = connection.get_execution_options().get("nasflow_write")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")
