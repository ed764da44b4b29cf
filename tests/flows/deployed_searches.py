"""Deployments on a real server: programs that run them, and what became of their runs."""

import json
import signal
import time
import urllib.error
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.flows.forked_commands import ForkedProgram, run_forked, start_forked
from tests.flows.searches import PrefectServer

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")
PATIENCE = 900  # seconds, for machines that do much beside


class Deployments:
    """What is deployed on a server, used from a folder."""

    def __init__(self, folder: Path, server: PrefectServer):
        self.folder = folder
        self.server = server
        self._env = {**server.env, "PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_WORKER_QUERY_SECONDS": "1"}
        self._programs: list[ForkedProgram] = []

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
    def worker(self, pool: str) -> Iterator[ForkedProgram]:
        """A process worker of the pool. It and its flow runs are forks."""
        with self._running("prefect", "--no-prompt", "worker", "start", "--pool", pool) as process:
            yield process

    @contextmanager
    def served(self, *arguments: object) -> Iterator[ForkedProgram]:
        """`nasflow serve`, once its deployment is there. It and its flow runs are forks."""
        with self._running("nasflow", "serve", *arguments) as process:
            deadline = time.monotonic() + PATIENCE
            while "are being served" not in self.log:
                assert process.poll() is None, self.log
                assert time.monotonic() < deadline, self.log
                time.sleep(0.2)
            yield process

    @property
    def log(self) -> str:
        """What the programs said."""
        return "".join(program.said() for program in self._programs)

    @contextmanager
    def _running(self, *command: object) -> Iterator[ForkedProgram]:
        process = start_forked(command, self.folder, self._env)
        self._programs.append(process)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(PATIENCE)
            finally:
                process.kill()
