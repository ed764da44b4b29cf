"""The section of the Dask service."""

from typing import Literal

from pydantic import Field

from nasflow.config.durations import Duration
from nasflow.config.services.common import DAY, JobCount
from nasflow.config.services.storage import ClusterConfig


class DaskServiceConfig(ClusterConfig):
    """A Dask cluster. Where its workers find files: `storage`."""

    kind: Literal["dask"] = Field(default="dask", description="a Dask cluster")
    address: str = Field(default="tcp://127.0.0.1:8786", description="of the scheduler")
    max_jobs: JobCount = Field(default=8, description="jobs submitted at a time")
    resources: dict[str, float] = Field(default={}, description="what a job takes of a worker's, as {GPU: 1}")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job on a node ends itself"
    )
