"""docs/tutorial.md, typed as it stands there: its files, its commands in their order, and what they print."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flows.searches import PrefectServer

pytestmark = pytest.mark.timeout(900)  # of which the walk through the page is nearly all

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs" / "tutorial.md").read_text()
BLOCK = re.compile(r"^```(python|yaml|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
STAY_OPEN = ("prefect server start", "prefect worker start")
PORT = "4200"  # the page's; the test takes a free one


@dataclass(frozen=True)
class Step:
    """A file to write, or a command with what it should print."""

    file: str = ""
    command: str = ""
    text: str = ""


def steps() -> list[Step]:
    """All of the page, in its order."""
    found = []
    for language, body in BLOCK.findall(TEXT):
        if language == "console":
            typed = [part.partition("\n") for part in re.split(r"^\$ ", body, flags=re.MULTILINE)[1:]]
            found += [Step(command=command, text=text) for command, _, text in typed]
        else:
            name, _, _ = body.partition("\n")
            found.append(Step(file=name.removeprefix("# "), text=body))
    return found


def is_as_shown(said: str, shown: str) -> bool:
    """Whether a command said what the page shows, where `...` stands for anything and white space for white space."""
    parts = [r"\s+".join(map(re.escape, part.split())) for part in shown.split("...")]
    return re.fullmatch(r"\s*" + r".*?".join(rf"\s*{part}\s*" for part in parts), said, re.DOTALL) is not None


class Terminals:
    """Where the page is typed: terminals in one folder, of which some stay open."""

    def __init__(self, folder: Path):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = str(probe.getsockname()[1])
        self.folder = folder / "search"
        self.folder.mkdir()
        self.open: list[subprocess.Popen[bytes]] = []
        self._log = folder / "open.log"
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_SERVER_API_PORT": self.port,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",  # for a machine that is busy with other tests
            "DO_NOT_TRACK": "1",
        }
        self.server = PrefectServer(f"http://127.0.0.1:{self.port}/api", self.env)

    def follow(self, step: Step) -> None:
        if step.file:
            (self.folder / step.file).write_text(step.text)
        elif step.command.startswith(STAY_OPEN):
            self._leave_open(step.command)
        else:
            said = self.type(step.command)
            assert not step.text or is_as_shown(said, step.text.replace(PORT, self.port)), f"{step.command}\n{said}"

    def type(self, command: str) -> str:
        """What a command prints; it must end well."""
        done = subprocess.run(
            ["/bin/sh", "-c", command.replace(PORT, self.port)],
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=400,
            check=False,
        )
        assert done.returncode == 0, "\n".join([command, done.stdout, done.stderr, self._opened()])
        return done.stdout

    def _leave_open(self, command: str) -> None:
        with self._log.open("ab") as log:
            self.open.append(
                subprocess.Popen(command.split(), cwd=self.folder, env=self.env, stdout=log, stderr=subprocess.STDOUT)
            )
        deadline = time.monotonic() + 240
        while not self._answers():
            assert self.open[-1].poll() is None and time.monotonic() < deadline, self._opened()
            time.sleep(0.2)

    def _opened(self) -> str:
        """What those that stay open have said."""
        return self._log.read_text() if self.open else ""

    def _answers(self) -> bool:
        try:
            urllib.request.urlopen(f"{self.server.url}/health", timeout=2).close()
        except OSError:
            return False
        return True

    def close(self) -> None:
        """Ctrl-C everywhere; a program of Prefect's that does not end of it is killed."""
        for process in reversed(self.open):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@pytest.fixture(scope="module")
def terminals(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminals]:
    """After the whole page was typed."""
    terminals = Terminals(tmp_path_factory.mktemp("tutorial"))
    try:
        for step in steps():
            terminals.follow(step)
        yield terminals
    finally:
        terminals.close()


def flow_runs(server: PrefectServer, **where: Any) -> list[dict[str, Any]]:
    body = {"flows": {"name": {"any_": ["nas-search"]}}, "flow_runs": where, "sort": "START_TIME_ASC"}
    found: list[dict[str, Any]] = server.post("/flow_runs/filter", body)
    return [run for run in found if run["state_type"] != "SCHEDULED"]


def test_every_block_is_followed():
    assert len(BLOCK.findall(TEXT)) == TEXT.count("\n```\n")
    files = [step.file for step in steps() if step.file]
    assert files == ["space.py", "search.yaml"]
    lines = next(step.text for step in steps() if step.file == "space.py").splitlines()
    assert len([line for line in lines[1:] if line]) <= 20


def test_it_is_read_in_ten_minutes():
    assert len(TEXT.split()) < 1200


def test_what_is_not_as_shown_is_found():
    assert is_as_shown("a\n  b c\nd\n", "a\n...\nd\n")
    assert is_as_shown("a b\n", "a b\n") and is_as_shown("so it is\n", "so...")
    assert not is_as_shown("a\nb\n", "a\n") and not is_as_shown("so it is\n", "it...")


@pytest.mark.long
def test_each_night_adds_its_rounds(terminals):
    shown = json.loads(terminals.type("nasflow show digits --json"))
    assert [each["state"] for each in shown["rounds"]] == ["completed"] * 3
    assert [sum(trial["round"] == number for trial in shown["trials"]) for number in range(3)] == [8, 8, 4]


@pytest.mark.long
def test_the_server_knows_every_run(terminals):
    runs = flow_runs(terminals.server)
    assert [run["state_type"] for run in runs] == ["COMPLETED"] * 2
    assert [run["deployment_id"] is None for run in runs] == [True, False]
    assert runs[1]["parameters"]["budget"]["trials_per_round"] == 4
    (deployment,) = terminals.server.post("/deployments/filter", {})
    assert (deployment["name"], deployment["work_pool_name"]) == ("nightly", "nasflow")
    (schedule,) = deployment["schedules"]
    assert (schedule["active"], schedule["schedule"]["cron"]) == (True, "0 2 * * *")


@pytest.mark.long
def test_what_it_points_to_is_there(terminals):
    found = terminals.server.post("/artifacts/latest/filter", {"limit": 200})
    keys = {artifact["key"] for artifact in found}
    assert {"digits-leaderboard", "digits-curves", "digits-round-0-merging"} <= keys
    page = urllib.request.Request(f"http://127.0.0.1:{terminals.port}/", headers={"Accept": "text/html"})
    with urllib.request.urlopen(page, timeout=30) as answer:
        assert b"<html" in answer.read()
    assert (terminals.folder / "digits.html").stat().st_size > 100_000


@pytest.mark.long
def test_what_stays_open_still_runs(terminals):
    assert [process.poll() for process in terminals.open] == [None, None]


def test_its_links_lead_somewhere():
    links = re.findall(r"\]\(([^)]+)\)", TEXT)
    assert len(links) >= 5
    assert [link for link in links if not (ROOT / "docs" / link.partition("#")[0]).is_file()] == []
