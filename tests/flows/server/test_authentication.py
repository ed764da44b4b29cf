"""A Prefect server with a password: every command works with it, says so without it, and lets it out nowhere."""

import base64
import json
import os
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.config.search import load_config
from nasflow.study.study import Study
from tests.flows.forked_commands import run_forked
from tests.flows.searches import PrefectServer, Searches, start_prefect_server

pytestmark = pytest.mark.long

PASSWORD = "admin:correct horse"
SPOKEN = [PASSWORD.encode(), base64.b64encode(PASSWORD.encode())]
CONFIG = {
    "space": {"target": "spaces.py:mixed", "params": {"widths": [8, 12, 16, 20]}},
    "evaluator": {
        "kind": "classification",
        "data": {"target": "nasflow.evaluator.data:DigitsRows"},
        "epochs": 1,
    },
    "budget": {"rounds": 1, "trials_per_round": 2},
}
REVEAL = """
from nasflow.errors import UserError
from nasflow.flows.server.secrets import use_prefect_blocks
from nasflow.config.secret.secrets import BlockSecret, reveal
use_prefect_blocks()
try:
    print(reveal(BlockSecret(prefect_block="host-password"), "password"))
except UserError as error:
    raise SystemExit(str(error))
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """A server with a password, which programs know."""
    settings = {"PREFECT_SERVER_API_AUTH_STRING": PASSWORD, "PREFECT_API_AUTH_STRING": PASSWORD}
    with start_prefect_server(tmp_path_factory.mktemp("guarded"), settings) as server:
        yield server


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory, guarded: PrefectServer) -> Searches:
    """A finished search on it, none of whose processes was started with the password among its arguments."""
    searches = Searches(tmp_path_factory.mktemp("searched"), guarded)
    searches.write("small", **CONFIG)
    done, told = threading.Event(), set[bytes]()
    watcher = threading.Thread(target=watch, args=(done, told))
    watcher.start()
    try:
        assert "trained best model" in searches.run_program("run", "small.yaml", "--verbose")
    finally:
        done.set()
        watcher.join()
    assert any(b"nasflow.training_service.local.worker" in line for line in told), "its workers were looked at, too"
    assert not [line for line in told if any(word in line for word in SPOKEN)]
    return searches


def watch(done: threading.Event, told: set[bytes]) -> None:
    """Collect the command lines of all processes."""
    while not done.wait(0.1):
        for line in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                told.add(line.read_bytes().replace(b"\0", b" "))
            except OSError:  # it has ended
                continue


def test_every_command_works_with_it(searched):
    assert "created" in searched.run("setup")
    assert "deployment 'nas-search/small' on work pool 'nasflow'" in searched.run("deploy", "small.yaml")
    assert "finished" in searched.run("recover")
    assert "no trial has failed" in searched.run("retry", "small")
    found = json.loads(searched.run("doctor", "small.yaml", "--json"))
    assert {check["check"]: check["level"] for check in found if check["level"] != "ok"} == {"worker": "warning"}


def test_an_unfinished_search_is_recovered(searched):
    unfinished(searched, "small", rounds=2)
    assert "would be resumed" in searched.run("recover", "small", "--dry-run")
    assert "trained best model" in searched.run("recover", "small")
    assert len(searched.json("show", "small")["trials"]) == 4


def test_it_stands_nowhere(searched):
    """Not in the study's folder and database, nor in the server's: logs, artifacts and parameters are there."""
    home = Path(searched.server.env["PREFECT_HOME"])
    files = [file for folder in (searched.folder, home) for file in folder.rglob("*") if file.is_file()]
    assert {"nasflow.db", "job.json", "prefect.db", "server.log"} <= {file.name for file in files}
    assert [file for file in files if any(word in file.read_bytes() for word in SPOKEN)] == []


@pytest.fixture(scope="module")
def waiting(tmp_path_factory: pytest.TempPathFactory, guarded: PrefectServer) -> Searches:
    """A study that was never run."""
    searches = Searches(tmp_path_factory.mktemp("waiting"), guarded)
    searches.write("small", **CONFIG)
    unfinished(searches, "small", rounds=1)
    return searches


@pytest.mark.parametrize(
    ("password", "words"),
    [
        ("admin:wrong", "does not accept our PREFECT_API_AUTH_STRING (401)"),
        (None, "asks for a password, and we have none (401)"),
    ],
    ids=["wrong", "none"],
)
@pytest.mark.parametrize(
    "command", [["run", "small.yaml"], ["deploy", "small.yaml"], ["recover"], ["setup"], ["doctor"]], ids=" ".join
)
def test_without_it_one_sentence_says_so(waiting, command, password, words):
    ended = run_forked(["nasflow", *command], waiting.folder, environment(waiting, password))
    sentence = f"Prefect's API at {waiting.server.url} {words}"
    assert ended.returncode == 2, ended.stderr
    assert "admin:" not in ended.stdout + ended.stderr
    if command == ["doctor"]:
        line = next(line for line in ended.stdout.splitlines() if sentence in line)
        assert "set PREFECT_API_AUTH_STRING to the same user:password" in line
    else:
        assert ended.stderr.startswith(f"error: {sentence}: set PREFECT_API_AUTH_STRING to the same user:password")
        assert ended.stderr.count("\n") == 1, "one sentence, and no traceback"


def test_secret_blocks(waiting):
    """They are read when a connection asks for them, perhaps in a flow."""
    waiting.server.env["HOST_PASSWORD"] = "1.10"
    waiting.run("setup", "--secret", "host-password")
    program = ["python", "-c", REVEAL]
    assert run(waiting, program, PASSWORD).stdout == "1.10\n"
    assert "does not accept our PREFECT_API_AUTH_STRING (401)" in run(waiting, program, "admin:wrong").stderr


def run(searches: Searches, command: list[str], password: str) -> subprocess.CompletedProcess[str]:
    """A program that ended, with this password."""
    return run_forked(command, searches.folder, environment(searches, password), timeout=240)


def environment(searches: Searches, password: str | None) -> dict[str, str]:
    """That of the server, with this password or with none."""
    env = {name: value for name, value in searches.server.env.items() if name != "PREFECT_API_AUTH_STRING"}
    return env | ({"PREFECT_API_AUTH_STRING": password} if password else {})


def unfinished(searches: Searches, name: str, rounds: int) -> None:
    """Record a study, or more rounds of one, without running them."""
    here = os.getcwd()  # noqa: PTH109
    os.chdir(searches.folder)  # relative stores are looked for there
    try:
        config = load_config(Path(f"{name}.yaml"))
        budget = config.budget.model_copy(update={"rounds": rounds})
        Study.open(config.model_copy(update={"budget": budget})).close()
    finally:
        os.chdir(here)
