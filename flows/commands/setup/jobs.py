"""What searches of `training_service.kind: prefect` need: the work pool of their jobs, and its deployment."""

from dataclasses import replace
from typing import TYPE_CHECKING

from nasflow.config.search import SearchConfig
from nasflow.config.services.prefect import PrefectServiceConfig

from .pool import ensure_pool
from .server_objects import Done, Made

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient


def ensure_jobs(client: "SyncPrefectClient", config: SearchConfig | None) -> list[Made]:
    """Create what is missing; nothing if the jobs of the config run elsewhere."""
    if config is None or not isinstance(config.training_service, PrefectServiceConfig):
        return []
    from ...pool.deployment import ensure_job_deployment, find_job_deployment, job_deployment_name  # noqa: PLC0415

    pool = config.training_service.work_pool
    made = replace(ensure_pool(client, pool, None), what="jobs' work pool", note="start workers of it where jobs run")
    done = Done.FOUND if find_job_deployment(client, pool) else Done.CREATED
    ensure_job_deployment(client, pool)
    return [made, Made("jobs' deployment", job_deployment_name(pool), done, "workers need no code of it")]
