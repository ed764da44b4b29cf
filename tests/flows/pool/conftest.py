"""A work pool with a real process worker, on the session's Prefect server."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from prefect.context import refresh_global_settings_context

from tests.flows.searches import PrefectServer

_PREFECT = [sys.executable, "-m", "prefect", "--no-prompt"]
_OFTEN = {"PREFECT_WORKER_QUERY_SECONDS": "0.5", "PREFECT_WORKER_HEARTBEAT_SECONDS": "3"}


class Pools:
    """Work pools of type process and their workers."""

    def __init__(self, folder: Path, server: PrefectServer):
        self._folder = folder
        self.server = server

    def make(self, name: str) -> str:
        """A new pool."""
        self.server.post("/work_pools/", {"name": name, "type": "process"})
        return name

    def start_worker(self, pool: str, name: str) -> psutil.Popen:
        """A worker, once it has been heard of."""
        command = [*_PREFECT, "worker", "start", "--pool", pool, "--name", name, "--type", "process"]
        with (self._folder / f"{name}.log").open("ab") as log:
            return psutil.Popen(command, cwd=self._folder, env={**self.server.env, **_OFTEN}, stdout=log, stderr=log)

    @contextmanager
    def worker(self, pool: str, name: str = "worker") -> Iterator[psutil.Popen]:
        """A worker that ends with this block."""
        worker = self.start_worker(pool, name)
        try:
            yield worker
        finally:
            end(worker)


def end(worker: psutil.Popen) -> None:
    """End a worker, and what it runs."""
    if worker.poll() is None:
        worker.send_signal(signal.SIGINT)
        try:
            worker.wait(60)
        except subprocess.TimeoutExpired:
            worker.kill()


@pytest.fixture(scope="session")
def pools(tmp_path_factory: pytest.TempPathFactory, prefect_server: PrefectServer) -> Pools:
    """Pools on the session's server."""
    return Pools(tmp_path_factory.mktemp("workers"), prefect_server)


@pytest.fixture
def uses_server(prefect_server: PrefectServer) -> Iterator[None]:
    """This process, all of its threads and its children use the session's server."""
    with use(prefect_server):
        yield


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
