"""The section of the debug service."""

from typing import Literal

from pydantic import Field

from nasflow.config.values import Section


class DebugServiceConfig(Section):
    """This process: jobs run when they are submitted, one after the other. For tests, notebooks and breakpoints."""

    kind: Literal["debug"] = Field(default="debug", description="in this process")
