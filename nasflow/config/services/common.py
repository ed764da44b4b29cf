"""What the sections of several training services have in common."""

from typing import Annotated

from pydantic import Field, PositiveFloat, PositiveInt

from nasflow.config.values import Section

DAY = 86400.0
"""Seconds."""

GpuIndices = list[Annotated[int, Field(ge=0)]]


class ProcessesConfig(Section):
    """What the services have in common that start processes."""

    pass_env: list[str] = Field(
        default=[],
        title="Environment variables to pass",
        description="that jobs get although they may hold secrets of the controller, as [PGPASSWORD]",
    )


class CodeConfig(Section):
    """What is shipped of the user's code: the config's folder but for what `.nasflowignore` names."""

    max_files: PositiveInt = Field(default=2000, description="more are refused")
    max_megabytes: PositiveFloat = Field(default=300.0, description="more are refused")
