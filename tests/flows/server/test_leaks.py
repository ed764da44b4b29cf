"""A search with passwords in its store, in its checkpoints' URL and in Prefect's auth string lets none of them out."""

import base64
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest

from tests.flows.searches import PrefectServer, Searches, start_prefect_server
from tests.sshd import make_key, public_key, start_sshd

pytestmark = pytest.mark.long

AUTH, STORE, FAR, LIBPQ = "admin:correct horse", "battery", "staple-me", "never spoken"
SPOKEN = [*(word.encode() for word in (AUTH, STORE, FAR, LIBPQ)), base64.b64encode(AUTH.encode())]
CONFIG: dict[str, Any] = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 12, 16, 20], "delay": 0.03}},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 2},
    "budget": {"rounds": 2, "trials_per_round": 3},
    "checkpoint": {"url": {"env": "FAR_AWAY"}},
}


@dataclass
class Seen:
    """The command lines of all processes, and the environments of workers and jobs, while a search ran."""

    commands: set[bytes] = field(default_factory=set)
    environments: set[bytes] = field(default_factory=set)

    def look(self, done: threading.Event, root: Path) -> None:
        """Look again and again. Workers and jobs have the study's folder in their environment."""
        while not done.wait(0.05):
            for process in Path("/proc").glob("[0-9]*"):
                try:
                    self.commands.add((process / "cmdline").read_bytes().replace(b"\0", b" "))
                    environment = (process / "environ").read_bytes()
                except OSError:  # it has ended
                    continue
                if b"NASFLOW_LOCAL_ROOT=" + bytes(root) in environment:
                    self.environments.add(environment)


@contextmanager
def looking(root: Path) -> Iterator[Seen]:
    """Within this, look at all processes; `root` is the folder of the study."""
    done, seen = threading.Event(), Seen()
    watcher = threading.Thread(target=seen.look, args=(done, root))
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A server with a password, in the environment of a user who has other secrets there, too."""
    settings = {"PREFECT_SERVER_API_AUTH_STRING": AUTH, "PREFECT_API_AUTH_STRING": AUTH}
    with start_prefect_server(tmp_path_factory.mktemp("guarded"), settings) as server:
        url = f"memory://me:{FAR}@far/away"
        yield replace(server, env=server.env | {"FAR_AWAY": url, "PGPASSWORD": LIBPQ})


@pytest.fixture(scope="module")
def store(postgresql_server: str) -> str:
    """The URL of an empty schema, with a password that the server does not ask for."""
    with psycopg.connect(postgresql_server, autocommit=True) as connection:
        connection.execute("DROP SCHEMA IF EXISTS leaks CASCADE")
        connection.execute("CREATE SCHEMA leaks")
    url = postgresql_server.replace("//tester@", f"//tester:{STORE}@")
    return f"{url}&options=-csearch_path%3Dleaks&sslpassword={STORE}"


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, server: PrefectServer, store: str) -> tuple[Searches, Seen]:
    """A finished search, and what its processes showed meanwhile."""
    searches = Searches(tmp_path_factory.mktemp("searched"), server)
    searches.write("secretive", **CONFIG, store=store)
    with looking(searches.folder / "nasflow-runs" / "secretive") as seen:
        said = searches.run_program("run", "secretive.yaml", "--verbose")
    (searches.folder / "said.txt").write_text(said)
    return searches, seen


def test_no_process_shows_a_password(searched: tuple[Searches, Seen]) -> None:
    _, seen = searched
    assert any(b"nasflow.training_service.local.worker" in line for line in seen.commands)
    assert not [line for line in seen.commands if any(word in line for word in SPOKEN)]
    assert seen.environments, "its workers were looked at"
    assert not [text for text in seen.environments if any(word in text for word in SPOKEN)]
    assert not [text for text in seen.environments if b"PREFECT_" in text]


def test_no_file_or_record_has_a_password(searched: tuple[Searches, Seen], store: str) -> None:
    """But for the config, where the user wrote it."""
    searches, _ = searched
    searches.server.env["NASFLOW_STORE"] = store
    assert "no trial has failed" in searches.run("retry", "secretive", code=0)
    searches.run("report", "secretive", "--html", "page.html")
    (searches.folder / "show.json").write_text(json.dumps(searches.json("show", "secretive")))
    home = Path(searches.server.env["PREFECT_HOME"])
    files = [file for folder in (searches.folder, home) for file in folder.rglob("*") if file.is_file()]
    assert {"job.json", "prefect.db", "server.log", "page.html", "worker.log"} & {file.name for file in files}
    where = [file for file in files if any(word in file.read_bytes() for word in SPOKEN)]
    assert where == [searches.folder / "secretive.yaml"]
    with psycopg.connect(store) as connection:
        names = connection.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'leaks'").fetchall()
        rows = [str(row).encode() for (name,) in names for row in connection.execute(f'SELECT t FROM "{name}" t')]
    assert rows and not [row for row in rows if any(word in row for word in SPOKEN)]


def test_the_jobs_had_what_they_needed(searched: tuple[Searches, Seen]) -> None:
    searches, _ = searched
    assert not [event for event in searches.events("secretive") if event["kind"] == "alert"], "checkpoints were copied"


def test_a_passphrase_of_a_key_is_nowhere_but_in_the_config(tmp_path: Path, server: PrefectServer) -> None:
    """Neither here nor on the host; and no process of the host has it."""
    searches = Searches(tmp_path / "here", server)
    searches.folder.mkdir()
    with start_sshd(tmp_path / "host") as host:
        key = make_key(host.folder / "guarded_key", passphrase=FAR)
        (host.folder / "authorized_keys").write_text(public_key(key))
        reached = {"hosts": [host.config_host(key_file=str(key), passphrase=FAR, slots=1)], "ssh_config": "/dev/null"}
        service = {"kind": "ssh", "known_hosts": str(host.known_hosts), **reached}
        searches.write("far", **{**CONFIG, "checkpoint": {}}, training_service=service)
        with looking(host.folder / "work" / "studies" / "far") as seen:
            said = searches.run_program("run", "far.yaml", "--verbose")
    assert FAR not in said
    assert not [line for line in seen.commands if FAR.encode() in line]
    home = Path(server.env["PREFECT_HOME"])
    files = [file for folder in (tmp_path, home) for file in folder.rglob("*") if file.is_file()]
    assert {"job.json", "prefect.db", "nasflow.db"} <= {file.name for file in files}
    assert [file for file in files if FAR.encode() in file.read_bytes()] == [searches.folder / "far.yaml"]
