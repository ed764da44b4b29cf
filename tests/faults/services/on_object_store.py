"""An object store under faults: Slurm's jobs get and send all files through an S3 server, behind a proxy."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path

from nasflow.training_service.machine.processes import carriers
from tests.faults.kinds import AGAIN, EPOCH, KINDS, Kind
from tests.faults.processes import Strike, end
from tests.faults.proxy import SLOW_SECONDS, Proxy
from tests.faults.scene import Missed, Scene
from tests.faults.service_stage import ServiceStage
from tests.faults.services.base import stage_of
from tests.faults.stage import Stage
from tests.object_store.s3 import S3
from tests.slurm import lacking, start_slurm

_STATUSES = [HTTPStatus.INTERNAL_SERVER_ERROR, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT]


class OnObjectStore(ServiceStage):
    """Slurm, and the server of its files."""

    def __init__(self, server: S3, proxy: Proxy):
        self.proxy, self._server = proxy, server
        self.environment = {"SLURM_CONF": os.environ["SLURM_CONF"]}
        storage = {**server.storage(proxy.port), "python": sys.executable, "poll_seconds": 0.5}
        self.section = {"kind": "slurm", "max_jobs": 2, "poll_seconds": 0.5, "storage": storage}

    def leftovers(self) -> list[str]:
        return [*(f"object {key}" for key in self._server.objects()), *(f"Slurm's job {job}" for job in self.jobs(""))]

    def jobs(self, states: str = "RUNNING") -> list[str]:
        """Return the numbers of Slurm's jobs in these states; all that wait or run if empty."""
        command = ["squeue", "--noheader", "--format", "%i", *(["--states", states] if states else [])]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout.split()


@contextmanager
def object_store(folder: Path, stage: Stage) -> Iterator[ServiceStage]:
    """Start Slurm, the server, and the proxy."""
    if reason := lacking():
        raise Missed(f"needs {reason}")
    server = S3()  # type: ignore[no-untyped-call]
    proxy = Proxy(server.port)
    try:
        with start_slurm():
            yield OnObjectStore(server, proxy)
    finally:
        proxy.close()
        server.close()


def disturb(mode: str, words: str) -> Strike:
    """The store does not answer as it should for a while."""

    def strike(scene: Scene, rng: random.Random) -> str:
        proxy, seconds = stage_of(scene, OnObjectStore).proxy, scene.pause(rng, 3.0, 25.0)
        status = rng.choice(_STATUSES)
        with proxy.switched(status if mode == "broken" else mode):
            scene.search.tend_for(seconds, silent=True)
        return f"the object store {words} for {seconds:.0f} s" + (f": {status.value}" if mode == "broken" else "")

    return strike


def kill_job(scene: Scene, rng: random.Random) -> str:
    """SIGKILL of all processes of a job on its node."""
    job = rng.choice(scene.await_some(stage_of(scene, OnObjectStore).jobs, "job of Slurm"))
    victims = scene.await_some(lambda: carriers("SLURM_JOB_ID", job), "process of the job")
    end(*victims)
    return f"killed the {len(victims)} processes of Slurm's job {job}"


def cancel_job(scene: Scene, rng: random.Random) -> str:
    """A job is cancelled on the cluster, as by its administrator."""
    job = rng.choice(scene.await_some(stage_of(scene, OnObjectStore).jobs, "job of Slurm"))
    subprocess.run(["scancel", job], check=True, timeout=60)
    return f"cancelled Slurm's job {job}"


_WAITS = "jobs train on and send what is missing later; the controller asks again"
OBJECT_STORE: dict[str, Kind] = {
    "store-away": Kind(
        4, disturb("cut", "could not be reached"), "the object store can't be reached for a while", _WAITS, "nothing"
    ),
    "store-slow": Kind(
        3, disturb("slow", f"took {SLOW_SECONDS:.0f} s an answer"),
        f"the object store takes {SLOW_SECONDS:.0f} s an answer", _WAITS, "nothing",
    ),
    "store-broken": Kind(
        4, disturb("broken", "answered with an error"), "the object store answers with 500, 503 or 504",
        _WAITS, "nothing",
    ),
    "store-mute": Kind(
        4, disturb("mute", "did what it was asked and did not answer"),
        "the object store does what it is asked, and its answers are lost", _WAITS, "nothing",
    ),
    "job-kill": Kind(5, kill_job, "SIGKILL of a job's processes on its node", AGAIN, EPOCH),
    "job-cancelled": Kind(3, cancel_job, "a job is cancelled on the cluster (`scancel`)", AGAIN, EPOCH),
    "controller-kill": KINDS["controller-kill"],
    "controller-stop": KINDS["controller-stop"],
}  # fmt: skip
"""By name, as `--only` takes it with `--service object-store`."""
