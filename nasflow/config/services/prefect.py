"""The section of the Prefect service."""

from typing import Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt

from nasflow.config.durations import Duration
from nasflow.config.services.common import DAY, JobCount
from nasflow.config.services.storage import ClusterConfig


class PrefectServiceConfig(ClusterConfig):
    """A Prefect work pool: each job is a flow run. `storage` says where its workers find files."""

    kind: Literal["prefect"] = Field(default="prefect", description="a Prefect work pool")
    work_pool: str = Field(min_length=1, description="the pool; of any type that has workers")
    work_queue: str | None = Field(default=None, description="of the pool; default: its default queue")
    job_variables: dict[str, Any] = Field(
        default={}, description="what jobs get that differs from the pool's base job template, as {image: ...}"
    )
    max_jobs: JobCount = Field(default=16, description="flow runs that wait or run at a time")
    cpus_per_job: PositiveInt = Field(default=1, description="threads of a job")
    gpus_per_job: int = Field(default=0, ge=0, description="0: a job sees no GPU; else all that its worker sees")
    python: str | None = Field(
        default=None, min_length=1, description="interpreter of jobs; default: that of the worker's flow runs"
    )
    poll_seconds: PositiveFloat = Field(default=2.0, description="between two looks at the flow runs")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job on a worker ends itself"
    )
