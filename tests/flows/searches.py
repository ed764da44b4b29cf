"""A real Prefect server, and searches as a user starts them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

import yaml

from tests.flows.forked_commands import ForkedProgram, run_forked, start_forked
from tests.flows.migrated_database import copy_kept, keep

HERE = Path(__file__).parent / "models"
ONE_TRIAL = {
    "space": {"target": "spaces.py:mixed"},
    "evaluator": {"kind": "classification", "data": {"target": "nasflow.evaluator.data:DigitsRows"}, "epochs": 1},
    "budget": {"rounds": 1, "trials_per_round": 1},
    "training_service": {"kind": "debug"},
}
"""The config of the shortest search, but for its name."""
NASFLOW = [sys.executable, "-m", "nasflow.flows.cli"]


@dataclass(frozen=True)
class PrefectServer:
    """A running server and the environment in which programs use it."""

    url: str
    env: dict[str, str]

    def post(self, path: str, body: dict[str, Any], patience: float = 120) -> Any:
        """The answer of one API call, asked for so many seconds if the server is too busy."""
        return json.loads(self._answer("POST", path, body, patience))

    def call(self, method: str, path: str, **body: Any) -> None:
        """An API call that answers nothing."""
        self._answer(method, path, body)

    def _answer(self, method: str, path: str, body: dict[str, Any], patience: float = 120) -> bytes:
        """Asked again and again while the server has too much to do, as Prefect's clients ask."""
        request = urllib.request.Request(f"{self.url}{path}", json.dumps(body).encode(), method=method)
        request.add_header("Content-Type", "application/json")
        deadline = time.monotonic() + patience
        while True:
            try:
                with urllib.request.urlopen(request, timeout=60) as answer:
                    said: bytes = answer.read()
                    return said
            except (urllib.error.HTTPError, TimeoutError) as error:
                busy = getattr(error, "code", HTTPStatus.SERVICE_UNAVAILABLE) == HTTPStatus.SERVICE_UNAVAILABLE
                if not busy or time.monotonic() > deadline:
                    raise
                time.sleep(1)

    def newest_run(self, flow_name: str, name: str | None = None) -> dict[str, Any]:
        """The run of a flow that began last, of those with this name; schedules have made others that are to begin."""
        named = {} if name is None else {"name": {"any_": [name]}}
        body = {
            "flows": {"name": {"any_": [flow_name]}},
            "flow_runs": {"start_time": {"is_null_": False}, **named},
            "sort": "START_TIME_DESC",
            "limit": 1,
        }
        (run,) = self.post("/flow_runs/filter", body)
        return dict(run)

    def rounds_of(self, run: dict[str, Any]) -> list[dict[str, Any]]:
        """The flow runs of a search's rounds, in order."""
        body = {"flow_runs": {"parent_flow_run_id": {"any_": [run["id"]]}}, "sort": "START_TIME_ASC"}
        found: list[dict[str, Any]] = self.post("/flow_runs/filter", body)
        return found

    def task_runs(self, flow_name: str, count: int) -> list[dict[str, Any]]:
        """The task runs of a flow's newest run and of its subflows, once at least `count` have a final state.

        The server records task runs some seconds after they happen.
        """
        deadline = time.monotonic() + 240
        while True:
            newest = self.newest_run(flow_name)
            ids = [run["id"] for run in [newest, *self.rounds_of(newest)]]
            body = {"task_runs": {"flow_run_id": {"any_": ids}}, "limit": 200}
            runs: list[dict[str, Any]] = self.post("/task_runs/filter", body)
            final = [run for run in runs if run["state_type"] in ("COMPLETED", "FAILED", "CRASHED")]
            if len(final) >= count or time.monotonic() > deadline:
                return final
            time.sleep(0.5)


class PrefectProcess:
    """A server on a free port with its database in `home`; it can be ended and started again on both.

    Attributes:
        port: its port on this machine.
    """

    def __init__(self, home: Path, extra: Mapping[str, str] | None = None):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self._url = f"http://127.0.0.1:{self.port}/api"
        self._log = home / "server.log"
        self._process: subprocess.Popen[bytes] | None = None
        self._database = home / "prefect.db"
        env = {
            **os.environ,
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": self._url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_SERVER_UI_ENABLED": "false",
            **(extra or {}),
        }
        self.server = PrefectServer(self._url, env)

    @property
    def pid(self) -> int:
        """Of the server's program."""
        assert self._process is not None, "the server was not started"
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it answers."""
        address = ["--host", "127.0.0.1", "--port", str(self.port)]
        is_first = "PREFECT_SERVER_DATABASE_CONNECTION_URL" not in self.server.env and copy_kept(self._database)
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "prefect", "server", "start", *address]
            self._process = subprocess.Popen(command, env=self.server.env, stdout=log, stderr=log)
        _wait_for(f"{self._url}/health", self._process, self._log)
        if is_first:
            keep(self._database)

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it by a signal."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(20)


@contextmanager
def start_prefect_server(home: Path, extra: Mapping[str, str] | None = None) -> Iterator[PrefectServer]:
    """A server on a free port, with its database in `home`; programs that use it get the `extra` variables, too."""
    process = PrefectProcess(home, extra)
    try:
        process.start()
        yield process.server
    finally:
        process.end()


def _wait_for(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 300  # on machines that do much beside
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(url, timeout=2):
                return
        except OSError:
            time.sleep(0.2)
    raise RuntimeError(f"the Prefect server did not start: {log.read_text()[-2000:]}")


class Searches:
    """Runs `nasflow` in one folder, against the session's Prefect server."""

    def __init__(self, folder: Path, server: PrefectServer):
        self.folder = folder
        self.server = server

    def write(self, name: str, **config: Any) -> Path:
        """A config file; `file.py` targets are those beside the tests."""
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({"name": name, "base_dir": str(HERE), **config}))
        return path

    def start(self, *arguments: object) -> ForkedProgram:
        """A running command."""
        return start_forked(["nasflow", *arguments], self.folder, self.server.env)

    def start_program(self, *arguments: object) -> subprocess.Popen[str]:
        """The same as a separate program."""
        return subprocess.Popen(
            [*NASFLOW, *map(str, arguments)],
            cwd=self.folder,
            env=self.server.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def run(self, *arguments: object, code: int = 0) -> str:
        """What a command that ends with `code` prints, its errors last."""
        ended = run_forked(["nasflow", *arguments], self.folder, self.server.env)
        output = ended.stdout + ended.stderr
        assert ended.returncode == code, output
        return output

    def run_program(self, *arguments: object) -> str:
        """What a command that ends well prints, run as a separate program."""
        with self.start_program(*arguments) as process:
            output, _ = process.communicate(timeout=600)
        assert process.returncode == 0, output
        return output

    def json(self, *arguments: object) -> Any:
        """What a command prints with `--json`."""
        return json.loads(self.run(*arguments, "--json"))

    def events(self, study: str, jobs: str = "*") -> list[dict[str, Any]]:
        """The events of all of a study's jobs whose names match."""
        files = sorted((self.folder / "nasflow-runs" / study / "jobs").glob(f"{jobs}/events.jsonl"))
        return [_parse(line) for file in files for line in file.read_text(errors="replace").splitlines()]


def _parse(line: str) -> dict[str, Any]:
    try:
        event = json.loads(line)
    except ValueError:
        event = None
    return event if isinstance(event, dict) else {"kind": "torn"}
