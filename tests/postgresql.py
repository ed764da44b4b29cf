"""A real PostgreSQL server in a temporary folder, reached by a Unix socket, for a test session; and empty stores."""

import itertools
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def postgresql_server() -> Iterator[str]:
    """URL of the server's maintenance database, on which tests may create their own."""
    psycopg = pytest.importorskip("psycopg", reason="the PostgreSQL driver is not installed")
    programs = _programs()
    if programs is None:
        pytest.skip("no PostgreSQL server (initdb, postgres) on this machine")
    folder = Path(tempfile.mkdtemp(prefix="nasflow-pg-"))  # short: the path of a Unix socket has at most 107 bytes
    server = None
    try:
        identity = _unprivileged(folder)
        data = folder / "data"
        initdb = [programs / "initdb", "--auth=trust", "--username=tester", "--encoding=UTF8", "--no-sync", data]
        subprocess.run(initdb, check=True, stdout=subprocess.DEVNULL, cwd=folder, **identity)
        with (folder / "log").open("wb") as log:
            server = subprocess.Popen(
                [programs / "postgres", "-D", data, "-F", "-c", "listen_addresses=", "-k", folder],
                stdout=log,
                stderr=log,
                cwd=folder,
                **identity,
            )
        _wait_until_up(psycopg, server, folder)
        yield f"postgresql://tester@/postgres?host={folder}"
    finally:
        if server is not None:
            server.terminate()
            server.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(params=["sqlite", "postgresql"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind; on PostgreSQL a schema of its own, which is quicker to make than a database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'nasflow.db'}"
    server: str = request.getfixturevalue("postgresql_server")
    psycopg = pytest.importorskip("psycopg")
    name = f"test{next(_NUMBERS)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE SCHEMA {name}")
    return f"{server}&options=-csearch_path%3D{name}"


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


def _wait_until_up(psycopg: Any, server: subprocess.Popen[bytes], folder: Path) -> None:
    deadline = time.monotonic() + 30
    while True:
        try:
            psycopg.connect(host=str(folder), user="tester", dbname="postgres").close()
            return
        except psycopg.OperationalError:
            if server.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"PostgreSQL did not start: {(folder / 'log').read_text()}") from None
            time.sleep(0.05)
