"""What the sections of several training services have in common."""

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from nasflow.config.durations import Duration
from nasflow.config.values import Section

DAY = 86400.0
"""Seconds."""

GpuIndices = list[Annotated[int, Field(ge=0)]]
"""Positions of GPUs on a machine, from 0."""

JobCount = Annotated[int, Field(ge=1, le=10_000)]
"""Jobs at a time. Each has a slot with a name, which services keep in memory and look through."""


class ProcessesConfig(Section):
    """What the services have in common that start processes."""

    pass_env: list[str] = Field(
        default=[],
        title="Environment variables to pass",
        description="that jobs get although they may hold secrets of the controller, as [PGPASSWORD]",
    )


class WorkersConfig(ProcessesConfig):
    """What the services have in common that keep warm workers."""

    reuse: bool = Field(
        default=True, description="run jobs in forks of a warm worker; false: each in a separate program"
    )
    idle_timeout: PositiveFloat = Field(
        default=600.0, description="seconds without work after which an abandoned worker ends itself"
    )
    abandoned_after: Duration = Field(
        default=DAY, description="without a controller, after which a worker ends its job and itself"
    )


class CodeConfig(Section):
    """What is shipped of the user's code: the config's folder but for what `.nasflowignore` names."""

    max_files: PositiveInt = Field(default=2000, description="more are refused")
    max_megabytes: PositiveFloat = Field(default=300.0, description="more are refused")
