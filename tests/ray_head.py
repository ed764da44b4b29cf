"""A real Ray head, in an environment of its own that is made once: Ray is no package of nasflow's environment."""

import fcntl
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

REQUIREMENTS = Path(__file__).with_name("ray_requirements.txt")
TOKEN = "let-me-in-to-the-ray-dashboard"
CPUS = 3


@contextmanager
def ray_head(environment: dict[str, str]) -> Iterator[str]:
    """Yield the address of the dashboard, which wants `Authorization: Bearer TOKEN`; it may not answer yet.

    Args:
        environment: variables of the head besides this process's own, which jobs inherit.
    """
    program = _installed() / "bin" / "ray"
    folder = Path(tempfile.mkdtemp(prefix="nasflow-ray-"))  # short: the paths of its sockets have at most 107 bytes
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    gcs, dashboard, client = (each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    own = {"HOME": str(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
    with (folder / "head.log").open("wb") as log:
        head = subprocess.Popen(
            [
                *(program, "start", "--head", "--block", "--disable-usage-stats"),
                *("--port", str(gcs), "--node-ip-address", "127.0.0.1", "--temp-dir", str(folder / "t")),
                *("--dashboard-host", "127.0.0.1", "--dashboard-port", str(dashboard)),
                *("--ray-client-server-port", str(client), "--num-cpus", str(CPUS), "--num-gpus", "2"),
                *("--min-worker-port", "0", "--max-worker-port", "0", "--object-store-memory", str(80 * 2**20)),
            ],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, **own, **environment},
        )
    try:
        _await_port(dashboard, head, folder / "head.log")
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        programs = [head, *psutil.Process(head.pid).children(recursive=True)] if head.poll() is None else []
        head.terminate()
        head.wait(60)
        _, left = psutil.wait_procs([each for each in programs if each is not head], timeout=20)
        for process in left:
            process.kill()
        shutil.rmtree(folder, ignore_errors=True)


def _installed() -> Path:
    """Return the environment, made if it is missing; skip the test if that can't be done."""
    version = hashlib.sha256(REQUIREMENTS.read_bytes() + sys.version.encode()).hexdigest()[:12]
    place = Path.home() / ".cache" / "nasflow-tests" / f"ray-{version}"
    place.parent.mkdir(parents=True, exist_ok=True)
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "made").exists():
            pip = [place / "bin" / "python", "-m", "pip", "install", "-qq", "--disable-pip-version-check"]
            for command in (
                [sys.executable, "-m", "venv", "--clear", place],
                [*pip, "--require-hashes", "--no-deps", "-r", REQUIREMENTS],
            ):
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                if done.returncode:
                    pytest.skip(f"needs Ray, which can't be installed: {(done.stderr or done.stdout)[-300:]}")
            (place / "made").touch()
    return place


def _await_port(port: int, head: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + 120
    while True:
        if head.poll() is not None or time.monotonic() > end:
            raise RuntimeError(f"Ray did not start: {log.read_text()}")
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            time.sleep(0.5)
        else:
            return
