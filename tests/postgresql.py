"""A real PostgreSQL server in a temporary folder, reached by a Unix socket, for the length of a test session."""

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
