"""A real Ray head, in an environment of its own that is made once: Ray is no package of nasflow's environment."""

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from tests.own_environment import own_environment

REQUIREMENTS = Path(__file__).with_name("ray_requirements.txt")
TOKEN = "let-me-in-to-the-ray-dashboard"
CPUS = 3
PATIENT = {
    "RAY_health_check_failure_threshold": "60",
    "RAY_worker_register_timeout_seconds": "300",
    "RAY_agent_register_timeout_ms": "300000",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "300",
}
"""On a busy machine Ray's programs answer one another late: taken for dead, one of them ends the whole head."""


@contextmanager
def ray_head(environment: dict[str, str]) -> Iterator[str]:
    """Yield the address of the dashboard, which wants `Authorization: Bearer TOKEN`; it may not answer yet.

    Args:
        environment: variables of the head besides this process's own, which jobs inherit.
    """
    program = own_environment("Ray", REQUIREMENTS) / "bin" / "ray"
    folder = Path(tempfile.mkdtemp(prefix="nasflow-ray-"))  # short: the paths of its sockets have at most 107 bytes
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
    gcs, dashboard, client = (each.getsockname()[1] for each in sockets)
    for each in sockets:
        each.close()
    own = {"HOME": str(folder), "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN, **PATIENT}
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
