"""Run the programs of a benchmark and a Prefect server, measure them, and end everything they started."""

import json
import os
import resource
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.request
import venv
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil

from nasflow.training_service.machine.processes import carriers, end_all

ROOT = Path(__file__).resolve().parent.parent
ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
_TOKEN = "NASFLOW_BENCHMARK_TOKEN"  # in the environment of every process that a benchmark starts
_TAIL = 2000  # characters of output shown with an error


class ContestantError(RuntimeError):
    """A contestant could not be installed or did not finish."""


def run_commands(
    commands: Sequence[Sequence[object]], folder: Path, environment: Mapping[str, str], timeout: float
) -> float:
    """Run commands in parallel in `folder`, with one thread per process set by the environment. Return the seconds.

    Their output goes to `folder/command-N.log`. Processes that they start are ended with them.

    Raises:
        ContestantError: one failed, or took longer than `timeout` seconds; the message has the end of its output.
    """
    token = secrets.token_hex(8)
    env = {**os.environ, **ONE_THREAD, "PYTHONPATH": str(ROOT), **environment, _TOKEN: token}
    logs = [folder / f"command-{index}.log" for index in range(len(commands))]
    began = time.perf_counter()
    try:
        processes = [_start(command, folder, env, log) for command, log in zip(commands, logs, strict=True)]
        for process, log in zip(processes, logs, strict=True):
            try:
                code = process.wait(max(0.0, began + timeout - time.perf_counter()))
            except subprocess.TimeoutExpired:
                raise ContestantError(f"still running after {timeout:.0f} s: {_tail(log)}") from None
            if code != 0:
                raise ContestantError(f"exit code {code}: {_tail(log)}")
        return time.perf_counter() - began
    finally:
        end_all(lambda: carriers(_TOKEN, token))
        _reap()


def install(environment: Path, requirements: Path) -> None:
    """Make an environment with `requirements`, again only if they change. Raises ContestantError."""
    stamp = environment / "installed.txt"
    if stamp.exists() and stamp.read_text() == requirements.read_text():
        return
    try:
        venv.create(environment, clear=True, with_pip=True)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ContestantError(f"no environment in {environment}: {error}") from error
    command = [environment / "bin" / "python", "-m", "pip", "install", "--no-input", "-r", requirements]
    run_commands([command], environment, {"PYTHONPATH": ""}, timeout=1800)
    stamp.write_text(requirements.read_text())


class CpuMeter:
    """Measures CPU seconds since its creation: those of the benchmark, and those of other processes.

    The benchmark's are those of this process, of its ended descendants, and of the process trees in `running`. They
    include descendants that outlive their parent only after `processes.adopt_orphans`.
    """

    def __init__(self, running: Sequence[psutil.Process] = ()):
        self._running = running
        self._at_first = self._used()

    def read(self) -> tuple[float, float]:
        """Return the benchmark's CPU seconds and the others'."""
        machine, ours = (now - before for now, before in zip(self._used(), self._at_first, strict=True))
        return ours, max(0.0, machine - ours)

    def _used(self) -> tuple[float, float]:
        """Return CPU seconds of the machine since its start, and the benchmark's since its start."""
        usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
        ended = sum(usage.ru_utime + usage.ru_stime for usage in usages)
        times = psutil.cpu_times()
        busy = sum(getattr(times, name, 0.0) for name in ("user", "nice", "system", "irq", "softirq"))
        return busy, ended + sum(map(cpu_seconds, self._running))


def cpu_seconds(root: psutil.Process) -> float:
    """Return the CPU seconds of a running process and its descendants so far."""
    return sum(sum(process.cpu_times()[:2]) for process in (root, *root.children(recursive=True)))


class PrefectServer:
    """A Prefect server in the background, with a new database.

    Args:
        home: of Prefect.
        database: an empty one of PostgreSQL in place of SQLite, as `postgresql+asyncpg://...`.

    Attributes:
        cold_start: seconds from the command to the first healthy answer.
        environment: the environment variables with which programs use it.
    """

    def __init__(self, home: Path, database: str | None = None):
        home.mkdir(parents=True)
        port = _free_port()
        self._url = f"http://127.0.0.1:{port}/api"
        self.environment = {
            "PREFECT_HOME": str(home),
            "PREFECT_API_URL": self._url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
        }
        if database is not None:
            self.environment["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database
        self._token = secrets.token_hex(8)
        self._log = home / "server.log"
        command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port", port]
        began = time.perf_counter()
        process = _start(command, home, {**os.environ, **self.environment, _TOKEN: self._token}, self._log)
        self.process = psutil.Process(process.pid)
        try:
            self._wait(process)
        except BaseException:
            self.close()
            raise
        self.cold_start = time.perf_counter() - began

    def count_task_runs(self) -> int:
        """Return how many ended task runs it has recorded."""
        ended = {"task_runs": {"state": {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]}}}}
        request = urllib.request.Request(f"{self._url}/task_runs/count", json.dumps(ended).encode())
        request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.read())

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Pause the server, so that it takes no CPU from contestants that do not use it."""
        self._signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self._signal(signal.SIGCONT)
            self._answer(timeout=30)

    def close(self) -> None:
        """End the server."""
        end_all(lambda: carriers(_TOKEN, self._token), grace=5)

    def _wait(self, process: subprocess.Popen[bytes]) -> None:
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline and process.poll() is None:
            try:
                return self._answer(timeout=2)
            except OSError:
                time.sleep(0.1)
        raise ContestantError(f"the Prefect server did not start: {_tail(self._log)}")

    def _answer(self, timeout: float) -> None:
        with urllib.request.urlopen(f"{self._url}/health", timeout=timeout):
            return

    def _signal(self, number: signal.Signals) -> None:
        for process in carriers(_TOKEN, self._token):
            process.send_signal(number)


def _start(
    command: Sequence[object], folder: Path, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [str(part) for part in command],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )


def _tail(log: Path) -> str:
    return log.read_text(errors="replace").strip()[-_TAIL:]


def _reap() -> None:
    """Collect the exit codes of ended processes that this one adopted."""
    for process in psutil.Process().children():
        if process.status() == psutil.STATUS_ZOMBIE:
            os.waitpid(process.pid, os.WNOHANG)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
