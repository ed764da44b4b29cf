"""Deployments on a real server: programs that run them, and what became of their runs."""

import json
import signal
import subprocess
import sys
import time
import urllib.error
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.flows.forked_commands import run_forked
from tests.flows.searches import NASFLOW, PrefectServer

PREFECT = [sys.executable, "-m", "prefect", "--no-prompt"]
FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PATIENCE = 900  # seconds, for machines that do much beside


class Deployments:
    """What is deployed on a server, used from a folder."""

    def __init__(self, folder: Path, server: PrefectServer):
        self.folder = folder
        self.server = server

    def prefect(self, *arguments: object, code: int = 0) -> str:
        """The output of a command of Prefect's that ends with `code`."""
        done = run_forked(["prefect", "--no-prompt", *arguments], self.folder, self.server.env, timeout=PATIENCE)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    def read(self, name: str) -> dict[str, Any]:
        """The deployment of this name."""
        (found,) = self.server.post("/deployments/filter", {"deployments": {"name": {"any_": [name]}}}, PATIENCE)
        deployment: dict[str, Any] = found
        return deployment

    def start(self, name: str, **parameters: Any) -> str:
        """The id of a new run."""
        body = {"parameters": parameters, "idempotency_key": str(uuid.uuid4())}
        return str(self.server.post(f"/deployments/{self.read(name)['id']}/create_flow_run", body, PATIENCE)["id"])

    def refusal(self, name: str, **parameters: Any) -> str:
        """Why the server makes no run with these parameters."""
        try:
            self.start(name, **parameters)
        except urllib.error.HTTPError as error:
            assert error.code == 409
            return str(json.loads(error.read())["detail"])
        raise AssertionError("there is a run")

    def run(self, id: str) -> dict[str, Any]:
        """A run as it stands."""
        (found,) = self.server.post("/flow_runs/filter", {"flow_runs": {"id": {"any_": [id]}}}, PATIENCE)
        run: dict[str, Any] = found
        return run

    def wait(self, id: str, *types: str) -> dict[str, Any]:
        """A run once its state has one of these types; any final one by default."""
        deadline = time.monotonic() + PATIENCE
        while (run := self.run(id))["state_type"] not in (types or FINAL):
            assert time.monotonic() < deadline, run["state"]
            time.sleep(0.5)
        return run

    @contextmanager
    def worker(self, pool: str) -> Iterator[subprocess.Popen[bytes]]:
        """A process worker of the pool."""
        with self._running([*PREFECT, "worker", "start", "--pool", pool]) as process:
            yield process

    @contextmanager
    def served(self, *arguments: object) -> Iterator[subprocess.Popen[bytes]]:
        """`nasflow serve`, once its deployment is there."""
        with self._running([*NASFLOW, "serve", *map(str, arguments)]) as process:
            deadline = time.monotonic() + PATIENCE
            while "are being served" not in self.log:
                assert process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.2)
            yield process

    @property
    def log(self) -> str:
        """What the programs said."""
        return "".join(file.read_text(errors="replace") for file in sorted(self.folder.glob("program-*.log")))

    @contextmanager
    def _running(self, command: list[str]) -> Iterator[subprocess.Popen[bytes]]:
        env = {**self.server.env, "PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_WORKER_QUERY_SECONDS": "1"}
        with (self.folder / f"program-{time.monotonic_ns()}.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=self.folder, env=env, stdout=log, stderr=log)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
