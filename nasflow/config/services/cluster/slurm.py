"""The section of the Slurm service."""

from collections.abc import Iterator, Sequence
from typing import Literal

from pydantic import Field, PositiveFloat, PositiveInt, ValidationInfo, field_validator

from nasflow.config.durations import Duration
from nasflow.config.services.common import DAY, JobCount
from nasflow.config.services.storage import ClusterConfig

# The options of sbatch by which a job would not be found, would be several, or would be waited for.
_OWN = {
    *("-J", "--job-name", "-M", "--cluster", "--clusters"),
    *("-a", "--array", "-W", "--wait", "--wrap"),
}


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

    @field_validator("options")
    @classmethod
    def _others_options(cls, options: list[str], info: ValidationInfo) -> list[str]:
        for name, value in _named(options):
            if name in _OWN:
                raise ValueError(f"'{name}' is nasflow's own; leave it out")
            if info.data.get("gpus_per_job") == 0 and _asks_for_gpus(name, value):
                raise ValueError(f"'{name}' asks for GPUs; set gpus_per_job, too, or jobs do not use them")
        return options


def _named(options: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield the name and the value of each option, which may be in one text or in two."""
    for option, following in zip(options, [*options, ""][1:], strict=True):
        if option.startswith("--"):
            name, given, value = option.partition("=")
            yield name, value if given else following
        elif option.startswith("-"):
            yield option[:2], option[2:] or following


def _asks_for_gpus(name: str, value: str) -> bool:
    if name == "--gres" or name.startswith("--tres-per-"):
        return "gpu" in value
    return name == "-G" or name.startswith("--gpus")
