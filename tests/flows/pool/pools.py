"""Work pools with real process workers."""

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from prefect.context import refresh_global_settings_context

from nasflow.training_service.cluster.runs import name_prefix
from tests.flows.forked_commands import ForkedProgram, start_forked
from tests.flows.searches import PrefectServer

_PREFECT = [sys.executable, "-m", "prefect", "--no-prompt"]
Worker = psutil.Popen | ForkedProgram
FINAL = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}  # states of flow runs
PATIENCE = 300  # seconds, for machines that do much beside
_OFTEN = {"PREFECT_WORKER_QUERY_SECONDS": "1"}


class Pools:
    """Work pools of type process and their workers."""

    def __init__(self, folder: Path, server: PrefectServer):
        self._folder = folder
        self.server = server

    def make(self, name: str, **about: Any) -> str:
        """A new pool."""
        paused = about.pop("is_paused", False)
        self.server.post("/work_pools/", {"name": name, "type": "process", **about})
        if paused:
            self.server.call("PATCH", f"/work_pools/{name}", is_paused=True)
        return name

    def start_worker(self, pool: str, name: str) -> ForkedProgram:
        """A worker, once it has been heard of. It and its flow runs are forks."""
        command = ["prefect", "--no-prompt", "worker", "start", "--type", "process", "--pool", pool, "--name", name]
        worker = start_forked(command, self._folder, {**self.server.env, **_OFTEN})
        self._await(worker, pool, name, worker.said)
        return worker

    def start_worker_program(self, pool: str, name: str) -> psutil.Popen:
        """The same as a separate program, with programs for its flow runs."""
        command = [*_PREFECT, "worker", "start", "--pool", pool, "--name", name, "--type", "process"]
        log = self._folder / f"{name}.log"
        with log.open("ab") as output:
            env = {**self.server.env, **_OFTEN}
            worker = psutil.Popen(command, cwd=self._folder, env=env, stdout=output, stderr=output)
        self._await(worker, pool, name, log.read_text)
        return worker

    def _await(self, worker: Worker, pool: str, name: str, said: Callable[[], str]) -> None:
        deadline = time.monotonic() + PATIENCE
        while name not in self.online(pool):
            assert worker.poll() is None, said()
            assert time.monotonic() < deadline, f"after {PATIENCE} s worker {name} has not been heard of"
            time.sleep(0.2)

    def online(self, pool: str) -> list[str]:
        """The pool's workers that live."""
        workers = self.server.post(f"/work_pools/{pool}/workers/filter", {})
        return [worker["name"] for worker in workers if worker["status"] == "ONLINE"]

    def runs(self, root: Path) -> list[dict[str, Any]]:
        """The flow runs of a service's root, the oldest first."""
        tags = {"all_": [name_prefix(root.resolve()).removesuffix("-")]}
        found = self.server.post("/flow_runs/filter", {"flow_runs": {"tags": tags}})
        return sorted(found, key=lambda run: str(run["created"]))

    def states(self, root: Path) -> list[str]:
        """The types of their states."""
        return [run["state_type"] for run in self.runs(root)]

    @contextmanager
    def worker(self, pool: str, name: str = "worker", *, program: bool = False) -> Iterator[Worker]:
        """A worker that ends with this block; as a separate program if that is what is tested."""
        worker = (self.start_worker_program if program else self.start_worker)(pool, name)
        try:
            yield worker
        finally:
            try:
                _end(worker)
            finally:
                kill(worker)


def _end(worker: Worker) -> None:
    """End a worker by SIGINT. Prefect's may miss one while it is busy, so it gets another, as from a user."""
    worker.send_signal(signal.SIGINT)
    try:
        worker.wait(PATIENCE / 2)
    except (TimeoutError, psutil.TimeoutExpired):
        worker.send_signal(signal.SIGINT)
        worker.wait(PATIENCE / 2)


def kill(process: Worker) -> None:
    """Kill a process, unless it has ended."""
    if process.poll() is None:
        process.kill()


@contextmanager
def use(server: PrefectServer) -> Iterator[None]:
    """Let this process use a server, or none, in this block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            if name.startswith("PREFECT_"):
                patch.setenv(name, value)
        refresh_global_settings_context()
        try:
            yield
        finally:
            patch.undo()
            refresh_global_settings_context()
