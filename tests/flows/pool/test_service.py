"""The Prefect service keeps the contract with a real server and a real process worker."""

from pathlib import Path

import psutil
import pytest

from nasflow.config.services.prefect import PrefectServiceConfig
from nasflow.flows.pool.service import PrefectService
from nasflow.testing.training_service import TrainingServiceContract, numbers
from tests.flows.pool.pools import Pools
from tests.handful import handful

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("worker")]
SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
POOL = "contract"


@pytest.fixture(scope="module")
def pool(pools: Pools):
    """A pool with a worker."""
    with pools.worker(pools.make(POOL)):
        yield


@pytest.fixture
def worker(pool, uses_server):
    """This process uses the server of the pool."""


def make(root: Path, slots: int = 1, **options):
    options = {"work_pool": POOL, "max_jobs": slots, "poll_seconds": 0.25, **options}
    return PrefectService(PrefectServiceConfig(**options), root, runner=SCRIPTED)


@handful
class TestPrefectService(TrainingServiceContract):
    """What depends on Prefect: Slurm keeps the whole contract with the same `ClusterService`."""

    factory = f"{__file__}:make"

    def lose(self, service, handle):
        """The process of the job's flow run."""
        (pid,) = numbers(service, f"jobs/{handle.job_id}/runs")
        psutil.Process(pid).parent().parent().kill()
