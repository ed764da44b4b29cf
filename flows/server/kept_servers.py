"""Prefect servers that were left running by choice: `nasflow server start`, or `nasflow run --keep-server`.

Each has a record, a file in the user's cache folder. A record is believed only if the process that it names still runs
on this machine and answers on its port with the record's own token: pids and ports are given to others, and servers are
killed.
"""

import hashlib
import http.client
import json
import os
import time
from pathlib import Path

from pydantic import BaseModel, ValidationError

from nasflow.system.process_id import ProcessId, process_table
from nasflow.system.small_files import write_aside

from .defaults import servers_dir

IDENTITY = "/nasflow-server"
"""The path at which a kept server answers with its token."""
_ANSWERS_WITHIN = 3.0  # seconds
_LOGS_STAY = 30 * 86400.0  # seconds


class KeptServer(BaseModel):
    """The record of one server.

    Attributes:
        token: what the server says at IDENTITY.
        key: of what it serves, see `serving_key`.
        machine: the boot of a machine, and the namespace in it, in which its process has its pid.
        prefect: the version of Prefect.
        database: the URL of its database, without a password.
        idle_minutes: it ends after so many minutes without a request; None: never.
    """

    token: str
    key: str
    process: ProcessId
    machine: str
    port: int
    prefect: str
    database: str
    idle_minutes: float | None

    @property
    def url(self) -> str:
        """The URL of its API."""
        return f"http://127.0.0.1:{self.port}/api"

    def answers(self) -> bool:
        """Whether it answers on its port. Counts as a request: an idle server does not end right after it."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=_ANSWERS_WITHIN)
        try:
            connection.request("GET", IDENTITY)
            return connection.getresponse().read(1000) == self.token.encode()
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()


def serving_key() -> str:
    """Return a key of what a server started here and now would serve: Prefect's version and its database.

    Imports Prefect.
    """
    import prefect  # noqa: PLC0415 - slow
    from prefect.settings import PREFECT_API_DATABASE_CONNECTION_URL, get_current_settings  # noqa: PLC0415 - slow

    parts = [prefect.__version__, str(PREFECT_API_DATABASE_CONNECTION_URL.value()), str(get_current_settings().home)]
    return hashlib.sha256(json.dumps([*parts, process_table()]).encode()).hexdigest()[:16]


def record_file(key: str) -> Path:
    """Return the file of the record of what serves `key`."""
    return servers_dir() / f"{key}.json"


def log_file() -> Path:
    """Return a file for the log of a server that starts now. Logs of earlier days are removed."""
    for old in servers_dir().glob("*.log"):
        if time.time() - old.stat().st_mtime > _LOGS_STAY:
            old.unlink(missing_ok=True)
    return servers_dir() / f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"


def write_record(server: KeptServer) -> bool:
    """Write the record of a server that has started, unless another one serves the same. Returns whether it was."""
    other = _read(record_file(server.key))
    if other is not None and other.answers():
        return False
    servers_dir().mkdir(parents=True, exist_ok=True)
    write_aside(record_file(server.key), server.model_dump_json())
    return True


def remove_record(server: KeptServer) -> None:
    """Remove a server's record, unless it is another's by now."""
    file = record_file(server.key)
    if (present := _parsed(file)) is not None and present.token == server.token:
        file.unlink(missing_ok=True)


def kept_servers() -> list[KeptServer]:
    """Return the servers whose processes run on this machine; records of ended and unreadable ones are removed."""
    found = [_read(file) for file in sorted(servers_dir().glob("*.json"))]
    return [server for server in found if server is not None]


def kept_server() -> KeptServer | None:
    """Return the server that serves what one started here and now would serve; None if there is none.

    Prefect is imported only if there is any.
    """
    if not kept_servers():
        return None
    server = _read(record_file(serving_key()))
    return server if server is not None and server.answers() else None


def _read(file: Path) -> KeptServer | None:
    """Return a record of this user and this machine whose process runs. Removes one that can't be of any use."""
    server = _parsed(file)
    if server is not None and server.machine != process_table():  # a home folder may be shared by machines
        return None
    if server is not None and server.process.alive():
        return server
    if not _is_anothers(file):
        file.unlink(missing_ok=True)
    return None


def _is_anothers(file: Path) -> bool:
    """Whether a record, if there is one, is another user's."""
    try:
        return file.stat().st_uid != os.geteuid()
    except FileNotFoundError:
        return False


def _parsed(file: Path) -> KeptServer | None:
    if _is_anothers(file):
        return None
    try:
        return KeptServer.model_validate_json(file.read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
