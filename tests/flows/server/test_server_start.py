"""How the server of a command starts, and what is said when it does not."""

import os
from pathlib import Path

import psutil
import pytest

from nasflow.config.search import load_config
from nasflow.errors import UserError
from nasflow.flows.server.database_template import DatabaseTemplate
from nasflow.flows.server.errors import PrefectApiError
from nasflow.flows.server.in_use import server_in_use
from nasflow.flows.server.own_server import (
    OwnServer,
    refuse_named_server,
    start_kept_server,
    start_own_server,
    use_own_server,
)
from nasflow.study.study import Study
from tests.flows.searches import ONE_TRIAL, PrefectServer, Searches


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of Prefect's that nobody has used, and no server that is named."""
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "prefect"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "prefect"


def test_a_home_that_cant_be_written_is_named_at_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.write_text("a file")
    server = OwnServer()
    with pytest.raises(PrefectApiError, match=r"did not start: .*prefect: .*: mend this, or set PREFECT_HOME to"):
        server.wait()
    assert server.process.wait(30) == 1


def test_a_damaged_database_is_named_by_the_servers_last_line(home: Path) -> None:
    home.mkdir()
    (home / "prefect.db").write_text("no database, but words, and more of them than a header has" * 100)
    server = OwnServer()
    with pytest.raises(PrefectApiError, match=r"file is not a database.* \(exit code 3\): mend this, or let"):
        server.wait()


def test_a_server_that_is_killed_at_its_start_is_noticed_at_once(home: Path) -> None:
    server = OwnServer()
    server.process.kill()
    with pytest.raises(PrefectApiError, match=r"it ended \(signal SIGKILL\)"):
        server.wait()


def test_settings_that_name_a_server_make_it_needless(home: Path) -> None:
    home.mkdir()
    (home / "profiles.toml").write_text(
        'active = "team"\n[profiles.team]\nPREFECT_API_URL = "http://127.0.0.1:1/api"\n'
    )
    server = OwnServer()
    assert not server.wait()
    assert server.process.wait(30) == 0
    start_own_server()
    use_own_server()
    use_own_server()  # as a command that asks Prefect for several things
    assert server_in_use() is None


def test_a_profile_that_names_a_server_is_followed(tmp_path: Path, home: Path, prefect_server: PrefectServer) -> None:
    home.mkdir()
    (home / "profiles.toml").write_text(
        f'active = "team"\n[profiles.team]\nPREFECT_API_URL = "{prefect_server.url}"\n[profiles.other]\n'
    )
    env = {name: value for name, value in prefect_server.env.items() if name != "PREFECT_API_URL"}
    env["PREFECT_HOME"] = str(home)
    searches = Searches(tmp_path, PrefectServer(prefect_server.url, env))
    searches.write("of-the-team", **ONE_TRIAL)
    said = searches.run("run", "of-the-team.yaml")
    assert prefect_server.url.removesuffix("/api") in said
    assert not (home / "prefect.db").exists()


@pytest.mark.parametrize(
    "command", [["run", "lonely.yaml"], ["retry", "lonely"], ["recover"], ["recover", "lonely"]], ids=" ".join
)
def test_where_none_is_named_and_none_may_start_one_sentence_says_so(
    tmp_path: Path, home: Path, command: list[str]
) -> None:
    searches = Searches(tmp_path, PrefectServer("", {**os.environ, "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "false"}))
    places = {"store": f"sqlite:///{tmp_path}/nasflow.db", "work_dir": str(tmp_path / "nasflow-runs")}
    Study.open(load_config(searches.write("lonely", **ONE_TRIAL, **places))).close()
    said = searches.run(*command, code=2)
    assert said.startswith(
        "error: no Prefect server is named, and PREFECT_SERVER_ALLOW_EPHEMERAL_MODE lets none start: "
    )
    assert "'nasflow server start'" in said and said.count("\n") == 1, said


def test_a_mistake_in_the_config_leaves_no_server(tmp_path: Path, home: Path) -> None:
    searches = Searches(tmp_path, PrefectServer("", dict(os.environ)))
    (tmp_path / "wrong.yaml").write_text("name: wrong\nspace: {target: spaces.py:mixed}\nbudget: {rounds: many}\n")
    program = searches.start("run", "wrong.yaml")
    said, _ = program.communicate(120)
    assert program.returncode == 2 and "budget.rounds" in said and "Traceback" not in said
    assert f"--parent={program.pid}" not in {part for process in psutil.process_iter() for part in _command(process)}


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_a_taken_port_is_one_sentence(home: Path) -> None:
    taken = OwnServer()
    try:
        with pytest.raises(UserError, match=rf"no server can be kept: port {taken.port}: Address already in use"):
            start_kept_server(1, taken.port)
    finally:
        taken.end()


def test_a_named_server_is_the_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:4200/api")
    with pytest.raises(UserError, match="PREFECT_API_URL names a server"):
        refuse_named_server()


def _template(content: bytes) -> Path:
    """Put a template of this content beside nothing, under the name that a whole one has."""
    from nasflow.flows.server import database_template

    template = DatabaseTemplate()
    template._folder.mkdir(parents=True, exist_ok=True)
    file = template._folder / f"{template._prefix}{database_template._digest(content)}.db"
    file.write_bytes(content)
    return file


def test_a_template_is_copied_whole_and_over_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_BLOCKS_REGISTER_ON_START", "true")  # copying switches it off, for its program
    home.mkdir()
    assert not DatabaseTemplate().copy_to(home / "new.db") and not list(home.iterdir())
    _template(b"a database")
    assert DatabaseTemplate().copy_to(home / "new.db")
    (home / "present.db").write_bytes(b"of the user")
    assert DatabaseTemplate().copy_to(home / "present.db")
    assert {file.name: file.read_bytes() for file in home.iterdir()} == {
        "new.db": b"a database",
        "present.db": b"of the user",
    }


def test_a_damaged_template_is_removed(home: Path) -> None:
    home.mkdir()
    file = _template(b"a database")
    file.write_bytes(b"a data")
    assert not DatabaseTemplate().copy_to(home / "new.db")
    assert not file.exists() and not list(home.iterdir())
