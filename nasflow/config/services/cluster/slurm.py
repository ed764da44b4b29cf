"""The section of the Slurm service."""

from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt

from nasflow.config.durations import Duration
from nasflow.config.services.common import DAY, JobCount
from nasflow.config.services.storage import ClusterConfig


class SlurmServiceConfig(ClusterConfig):
    """A Slurm cluster. Its client commands work here, and `storage` says where its nodes find files.

    What is left out is left to the cluster's defaults.
    """

    kind: Literal["slurm"] = Field(default="slurm", description="a Slurm cluster")
    max_jobs: JobCount = Field(default=8, description="jobs in Slurm's queue or running at a time")
    partition: str | None = Field(default=None, description="default: the cluster's")
    account: str | None = Field(default=None, description="default: the user's")
    time_limit: PositiveInt | None = Field(default=None, description="minutes a job may take")
    cpus_per_job: PositiveInt = Field(default=1, description="cores of a job")
    gpus_per_job: int = Field(default=0, ge=0, description="GPUs of a job")
    memory_gb: PositiveFloat | None = Field(default=None, description="of a job; default: the cluster's")
    options: list[str] = Field(default=[], description="more options of sbatch, as '--constraint=a100'")
    python: str | None = Field(default=None, min_length=1, description="interpreter on the nodes; default: this one")
    env_setup: str | None = Field(default=None, description="shell commands that make 'python' ready")
    poll_seconds: PositiveFloat = Field(default=2.0, description="between two looks at Slurm's queue")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job on a node ends itself"
    )
