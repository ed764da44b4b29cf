"""A real PostgreSQL server in a temporary folder, reached by a Unix socket, for a test session; and empty stores."""

import importlib.util
import itertools
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NUMBERS = itertools.count()


class PostgresqlServer:
    """A server of its own; it can be stopped and started again on its data.

    Attributes:
        url: of its maintenance database, on which tests may create their own.
    """

    def __init__(self) -> None:
        programs = _programs()
        assert programs is not None, self.lacking()
        self._programs = programs
        self._folder = Path(tempfile.mkdtemp(prefix="nasflow-pg-"))  # short: a Unix socket's path has at most 107 bytes
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"postgresql://tester@/postgres?host={self._folder}"
        try:
            self._identity = _unprivileged(self._folder)
            initdb = [programs / "initdb", "--auth=trust", "--username=tester", "--encoding=UTF8", "--no-sync"]
            subprocess.run(
                [*initdb, self._folder / "data"],
                check=True, stdout=subprocess.DEVNULL, cwd=self._folder, **self._identity,
            )  # fmt: skip
            self.start()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def lacking() -> str | None:
        """Why there can be no server here."""
        if importlib.util.find_spec("psycopg") is None:
            return "the PostgreSQL driver is not installed"
        return None if _programs() else "no PostgreSQL server (initdb, postgres) on this machine"

    def start(self) -> None:
        """Start it, and wait until it answers."""
        options = ["-D", self._folder / "data", "-F", "-c", "listen_addresses=", "-k", self._folder]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._programs / "postgres", *options], stdout=log, stderr=log, cwd=self._folder, **self._identity
            )
        _wait_until_up(self._process, self._folder)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal: SIGTERM waits for its users, SIGINT ends their transactions, SIGQUIT is a crash."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(30)

    def close(self) -> None:
        """End it, and remove its data."""
        self.stop(signal.SIGINT)
        shutil.rmtree(self._folder, ignore_errors=True)


def for_prefect(url: str, name: str) -> str:
    """The URL by which Prefect's server takes another database of a server."""
    return url.replace("/postgres?", f"/{name}?").replace("postgresql:", "postgresql+asyncpg:")


def new_schema(server: str) -> str:
    """The URL of an empty schema of a server, which is quicker to make than a database."""
    import psycopg

    name = f"test{next(_NUMBERS)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """URL of the server's maintenance database, on which tests may create their own."""
    if reason := PostgresqlServer.lacking():
        pytest.skip(reason)
    server = PostgresqlServer()
    try:
        yield server.url
    finally:
        server.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind; on PostgreSQL a schema of its own, which is quicker to make than a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'nasflow.db'}"
    return new_schema(request.getfixturevalue("postgresql_server"))


def _programs() -> Path | None:
    on_path = shutil.which("postgres")
    found = [Path(on_path).parent] if on_path else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((path for path in found if (path / "initdb").exists() and (path / "postgres").exists()), None)


def _unprivileged(folder: Path) -> dict[str, Any]:
    """Arguments for subprocess: PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    nobody = pwd.getpwnam("nobody")
    os.chown(folder, nobody.pw_uid, nobody.pw_gid)
    return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": []}


def _wait_until_up(server: subprocess.Popen[bytes], folder: Path) -> None:
    import psycopg

    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(host=str(folder), user="tester", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}") from None
            time.sleep(0.05)
