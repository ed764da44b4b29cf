"""A Prefect work pool under faults, with a real process worker, on the Prefect server of the searches."""

import random
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import psutil

from nasflow.training_service.machine.processes import carriers, end_all
from tests.faults.kinds import AGAIN, EPOCH, KINDS, Kind
from tests.faults.processes import end
from tests.faults.scene import Scene
from tests.faults.service_stage import ServiceStage
from tests.faults.services.base import stage_of
from tests.faults.stage import Stage
from tests.flows.pool.pools import FINAL, Pools, kill

_POOL, _RUN = "jobs", "PREFECT__FLOW_RUN_ID"


class OnPrefect(ServiceStage):
    """A pool and its worker."""

    def __init__(self, pools: Pools):
        self.pools = pools
        self.section = {"kind": "prefect", "work_pool": pools.make(_POOL), "max_jobs": 2, "poll_seconds": 0.5}
        self._workers = 0
        self.worker = self.start_worker()

    def start_worker(self) -> psutil.Popen:
        """Start a worker with a new name; it takes the place of the last one."""
        self._workers += 1
        self.worker = self.pools.start_worker(_POOL, f"worker-{self._workers}")
        return self.worker

    def runs(self, *states: str) -> list[dict[str, Any]]:
        """Return the flow runs of jobs in these states."""
        found = self.pools.server.post("/flow_runs/filter", {"work_pools": {"name": {"any_": [_POOL]}}})
        return [run for run in found if run["state_type"] in states]

    def running(self) -> list[dict[str, Any]]:
        """Return the flow runs that run."""
        return self.runs("RUNNING")

    def leftovers(self) -> list[str]:
        alive = self.runs("SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING")
        programs = [process for run in self.runs(*FINAL) for process in carriers(_RUN, run["id"])]
        return [*(f"flow run {run['name']}" for run in alive), *(f"process {process.pid}" for process in programs)]

    def close(self) -> None:
        """End the worker and what it has started."""
        kill(self.worker)
        for run in self.runs("RUNNING", "CANCELLING", *FINAL):
            end_all(partial(carriers, _RUN, run["id"]))


@contextmanager
def prefect(folder: Path, stage: Stage) -> Iterator[ServiceStage]:
    """Start the worker."""
    folder.mkdir()
    on_prefect = OnPrefect(Pools(folder, stage.server.server))
    try:
        yield on_prefect
    finally:
        on_prefect.close()


def kill_worker(scene: Scene, rng: random.Random) -> str:
    """SIGKILL of the worker, in whose place another starts after a while. The runs that it started live on."""
    stage = stage_of(scene, OnPrefect)
    seconds = scene.pause(rng, 0.0, 8.0)
    stage.worker.kill()
    stage.worker.wait()
    scene.search.tend_for(seconds, silent=True)
    stage.start_worker()
    return f"killed the pool's worker; another started after {seconds:.1f} s"


def kill_run(scene: Scene, rng: random.Random) -> str:
    """SIGKILL of all processes of a flow run."""
    stage = stage_of(scene, OnPrefect)
    run = rng.choice(scene.await_some(stage.running, "flow run of a job"))
    victims = scene.await_some(lambda: carriers(_RUN, run["id"]), "process of the flow run")
    end(*victims)
    return f"killed the {len(victims)} processes of flow run {run['name']}"


def cancel_run(scene: Scene, rng: random.Random) -> str:
    """A flow run is cancelled, as in Prefect's UI."""
    stage = stage_of(scene, OnPrefect)
    run = rng.choice(scene.await_some(stage.running, "flow run of a job"))
    stage.pools.server.post(f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}, "force": False})
    return f"cancelled flow run {run['name']}"


def delete_run(scene: Scene, rng: random.Random) -> str:
    """A flow run is deleted in Prefect while its program runs."""
    stage = stage_of(scene, OnPrefect)
    run = rng.choice(scene.await_some(stage.running, "flow run of a job"))
    stage.pools.server.call("DELETE", f"/flow_runs/{run['id']}")
    deadline = time.monotonic() + 60

    def lives_on() -> str | None:
        while (left := carriers(_RUN, run["id"])) and time.monotonic() < deadline + 60:
            time.sleep(0.2)
        return f"processes of the deleted flow run {run['name']} live on: {left}" if left else None

    scene.promises.append(lives_on)
    return f"deleted flow run {run['name']}"


PREFECT: dict[str, Kind] = {
    "worker-kill": Kind(4, kill_worker, "SIGKILL of the pool's worker; another starts later", AGAIN, EPOCH),
    "run-kill": Kind(5, kill_run, "SIGKILL of a job's flow run and all its processes", AGAIN, EPOCH),
    "run-cancelled": Kind(4, cancel_run, "a job's flow run is cancelled in Prefect's UI", AGAIN, EPOCH),
    "run-deleted": Kind(2, delete_run, "a job's flow run is deleted in Prefect", AGAIN, EPOCH),
    "server-kill": KINDS["server-kill"],
    "server-stop": KINDS["server-stop"],
    "controller-kill": KINDS["controller-kill"],
    "controller-stop": KINDS["controller-stop"],
}  # fmt: skip
"""By name, as `--only` takes it with `--service prefect`."""
