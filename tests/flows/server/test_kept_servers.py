"""A server that stays: searches find it, and nothing that only looks like one."""

import asyncio
import http.server
import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import psutil
import pytest

from nasflow.flows.server.kept_servers import (
    IDENTITY,
    KeptServer,
    kept_server,
    kept_servers,
    record_file,
    remove_record,
    serving_key,
    write_record,
)
from nasflow.flows.server.server_program import Watched
from nasflow.system.process_id import ProcessId, process_id, process_table
from tests.flows.searches import ONE_TRIAL, PrefectServer, Searches


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Searches]:
    """`nasflow` of a user without a server, with a home and a cache that nobody has used."""
    folder = tmp_path_factory.mktemp("alone")
    env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    env |= {"PREFECT_HOME": str(folder / "prefect"), "XDG_CACHE_HOME": str(folder / "cache")}
    searches = Searches(folder, PrefectServer("", env))
    yield searches
    searches.run("server", "stop", "--all")


@pytest.fixture(scope="module")
def kept(alone: Searches) -> dict[str, object]:
    """What `nasflow server status` says after a first search that keeps its server."""
    alone.write("first", **ONE_TRIAL)
    said = alone.run("run", "first.yaml", "--keep-server", "5")
    (server,) = alone.json("server", "status")
    assert f"see it in the Prefect UI: {str(server['url']).removesuffix('/api')}" in said
    return dict(server)


def test_the_next_search_uses_the_server_that_a_search_has_kept(alone: Searches, kept: dict[str, object]) -> None:
    assert kept["answers"] and kept["idle_minutes"] == 5
    alone.write("second", **ONE_TRIAL)
    assert str(kept["url"]).removesuffix("/api") in alone.run("run", "second.yaml")
    runs = PrefectServer(str(kept["url"]), {}).post("/flow_runs/filter", {"flows": {"name": {"any_": ["nas-search"]}}})
    assert {run["name"] for run in runs} == {"first", "second"}


def test_doctor_examines_the_server_that_is_kept(alone: Searches, kept: dict[str, object]) -> None:
    alone.write("pooled", **ONE_TRIAL | {"training_service": {"kind": "prefect", "work_pool": "none"}})
    said = alone.run("doctor", "pooled.yaml", "--json", code=2)
    found = {finding["check"]: finding for finding in json.loads(said)}
    assert "Prefect has no work pool 'none'" in found["slots"]["saw"], "it was asked, as a search asks it"
    assert found["server"]["level"] == "ok" and str(kept["url"]) in found["server"]["saw"]
    assert "'nasflow server stop' ends it" in found["server"]["saw"]
    assert found["pool"]["level"] == "broken", "a server without a work pool"
    assert str(kept["url"]) in alone.run("server", "start")  # there is one
    assert [one["pid"] for one in alone.json("server", "status")] == [kept["pid"]]


def test_services_are_checked_with_the_server_that_is_kept(alone: Searches, kept: dict[str, object]) -> None:
    alone.write("pooled", **ONE_TRIAL | {"training_service": {"kind": "prefect", "work_pool": "none"}})
    (service,) = json.loads(alone.run("services", "check", "pooled.yaml", "--json", code=2))
    assert "Prefect has no work pool 'none'" in service["problems"][0]["text"]


def test_its_database_began_as_a_copy_of_a_template_that_the_cache_keeps(
    alone: Searches, kept: dict[str, object]
) -> None:
    (template,) = (alone.folder / "cache" / "nasflow" / "prefect-databases").glob("*.db")
    used = alone.folder / "prefect" / "prefect.db"
    assert str(used) in str(kept["database"])
    schema = "SELECT type, name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' ORDER BY name"
    blocks = "SELECT id, slug FROM block_type ORDER BY id"
    with closing(sqlite3.connect(template)) as before, closing(sqlite3.connect(used)) as now:
        for query in (schema, blocks):
            assert before.execute(query).fetchall() == now.execute(query).fetchall() != []
        assert before.execute("SELECT count(*) FROM flow_run").fetchone() == (0,)
    assert used.stat().st_mode & 0o077 == 0


def test_a_killed_server_is_forgotten(alone: Searches) -> None:
    assert "runs at" in alone.run("server", "start", "--idle", "5")
    (server,) = alone.json("server", "status")
    psutil.Process(server["pid"]).kill()
    psutil.wait_procs([psutil.Process(server["pid"])], timeout=30)
    alone.run("server", "status", code=1)
    assert "no server runs" in alone.run("server", "stop")
    assert not list((alone.folder / "cache" / "nasflow" / "servers").glob("*.json"))


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the records, of a test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "nasflow" / "servers"


@pytest.fixture
def other(request: pytest.FixtureRequest) -> Iterator[int]:
    """The port of someone else's web server, or of one that answers with the parameter."""
    says: str = getattr(request, "param", "something else")

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(says.encode())

    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def _record(port: int, process: ProcessId | None = None, **changes: object) -> KeptServer:
    own = process or process_id(os.getpid())
    assert own is not None
    record = KeptServer(
        token="of the server",
        key=serving_key(),
        process=own,
        machine=process_table(),
        port=port,
        prefect="3",
        database="sqlite://",
        idle_minutes=None,
    )
    return record.model_copy(update=changes)


def test_what_answers_on_the_port_must_be_the_server(cache: Path, other: int) -> None:
    assert write_record(_record(other))
    assert [server.answers() for server in kept_servers()] == [False]  # its process runs
    assert kept_server() is None


def test_the_record_of_an_ended_process_is_removed(cache: Path, other: int) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as program:
        process = process_id(program.pid)
        program.communicate(b"\n")
    write_record(_record(other, process))
    assert kept_server() is None and not list(cache.iterdir())


def test_a_pid_that_another_process_has_by_now_is_not_the_server(cache: Path, other: int) -> None:
    write_record(_record(other, ProcessId(pid=os.getpid(), started="before")))
    assert kept_servers() == [] and not list(cache.iterdir())


def test_a_record_of_another_machine_with_the_same_home_is_left_alone(cache: Path, other: int) -> None:
    record = _record(other, machine="elsewhere")
    write_record(record)
    assert kept_server() is None and record_file(record.key).exists()


def test_a_record_of_another_user_with_the_same_cache_is_left_alone(
    cache: Path, other: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = _record(other)
    write_record(record)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert kept_server() is None and record_file(record.key).exists()
    remove_record(record)
    assert record_file(record.key).exists()


@pytest.mark.parametrize("other", ["of the server"], indirect=True)
def test_a_server_of_another_database_or_version_is_not_used(cache: Path, other: int) -> None:
    write_record(_record(other, key="0" * 16))
    assert kept_server() is None and len(kept_servers()) == 1
    write_record(_record(other))
    assert kept_server() is not None


@pytest.mark.parametrize("damaged", ["", "{", json.dumps({"port": 1}), "\0" * 100])
def test_a_damaged_record_is_removed(cache: Path, damaged: str) -> None:
    cache.mkdir(parents=True)
    record_file(serving_key()).write_text(damaged)
    assert kept_server() is None and not list(cache.iterdir())


def test_a_server_removes_no_other_ones_record(cache: Path, other: int) -> None:
    record = _record(other)
    write_record(record)
    remove_record(record.model_copy(update={"token": "of an earlier one"}))
    assert record_file(record.key).exists()
    remove_record(record)
    assert not record_file(record.key).exists()


def test_a_server_is_idle_once_nobody_asks_it() -> None:
    heard: list[str] = []
    sent: list[Any] = []

    async def application(scope: Any, receive: Any, send: Any) -> None:
        heard.append(scope["type"])
        assert scope["type"] == "lifespan" or watched.idle() == 0
        await asyncio.sleep(0.01)

    async def send(message: Any) -> None:
        sent.append(message)

    async def ask(**scope: str) -> None:
        await watched(scope, None, send)  # type: ignore[arg-type]

    async def talk() -> None:
        await ask(type="lifespan")
        await asyncio.gather(ask(type="http", path="/api/health"), ask(type="websocket", path="/api/events"))
        assert 0 < watched.idle() < 60
        assert not sent
        await ask(type="http", path=IDENTITY)

    watched = Watched(application, "a token")
    asyncio.run(talk())
    assert heard == ["lifespan", "http", "websocket"]
    assert sent[1]["body"] == b"a token"
