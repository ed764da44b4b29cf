"""Check that a study store can be used, without changing it: its tables are not even upgraded."""

import sqlite3
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from sqlalchemy import URL, create_engine, inspect, select, text
from sqlalchemy.exc import DBAPIError

from nasflow.errors import StudyError
from nasflow.study.database.store import SchemaRow, clear_errors, refuse_newer
from nasflow.study.database.store_url import StoreUrl, parse_url, shown_url

_PATIENCE = 10  # seconds for a server to answer, or a lock to go away
_EMPTY = "holds no studies yet; the first search makes its tables"


def look_at_store(url: StoreUrl) -> str:
    """Describe in words what a search would find there.

    Raises:
        ConfigError: the secret with its URL can't be read.
        StudyError: it can't be reached or written, is not a database, or was written by a newer nasflow.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite":
        return _look_at_file(parsed, Path(str(parsed.database)))
    return _look_at_server(parsed)


def _look_at_file(url: URL, file: Path) -> str:
    if not file.exists():
        return f"{file} is not there yet; the first search makes it"
    try:
        connection = sqlite3.connect(
            f"file:{quote(str(file))}?mode=rw", uri=True, timeout=_PATIENCE, isolation_level=None
        )
        with closing(connection):
            connection.execute("BEGIN IMMEDIATE")  # needs everything that a first write needs
            known = connection.execute("SELECT 1 FROM sqlite_master WHERE name = ?", [SchemaRow.__tablename__])
            row = known.fetchone() and connection.execute("SELECT version FROM nasflow_schema").fetchone()
            connection.execute("ROLLBACK")
    except sqlite3.DatabaseError as error:
        raise StudyError(f"store: {file} {_why_not(error, file)}") from None
    if row is None:
        return f"{file} {_EMPTY}"
    refuse_newer(url, row[0])
    return f"{file} can be written; its tables have version {row[0]}"


def _why_not(error: sqlite3.DatabaseError, file: Path) -> str:
    """Say why a database can't be written to, and how to fix that."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:  # the other bits distinguish cases of one cause
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"was locked for {_PATIENCE} s; find the process that holds it: fuser {file}"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return f"can't be written ({error}); let your user write it and its folder {file.parent}, or name another"
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return f"can't be written ({error}); see whether the disk of {file.parent} is full"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return f"is no database that can be read ({error}); name another, or put back a copy of it"
        case _:
            return f"can't be used ({error})"


def _look_at_server(url: URL) -> str:
    shown = shown_url(url)
    try:
        engine = create_engine(url, connect_args={"connect_timeout": _PATIENCE})
    except ImportError:
        raise StudyError("store: PostgreSQL needs its driver; install 'nasflow[postgresql]'") from None
    try:
        with clear_errors(url, DBAPIError), engine.connect() as connection:
            if connection.scalar(text("SHOW transaction_read_only")) == "on":
                raise StudyError(
                    f"store: {shown} is read-only (a standby, or default_transaction_read_only is on); "
                    "name the primary server, or set it to off"
                )
            if not inspect(connection).has_table(SchemaRow.__tablename__):
                if not connection.scalar(text("SELECT has_schema_privilege(current_schema(), 'CREATE')")):
                    raise StudyError(f"store: in {shown} we may not make tables; grant us CREATE on its schema")
                return f"{shown} {_EMPTY}"
            version = connection.scalars(select(SchemaRow.version)).one()
            refuse_newer(url, version)
            if not connection.scalar(text("SELECT has_table_privilege('trials', 'INSERT')")):
                raise StudyError(f"store: in {shown} we may not write; grant us all privileges on its tables")
            return f"{shown} can be written; its tables have version {version}"
    finally:
        engine.dispose()
