"""The section of the DLTS service."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from nasflow.config.secret.secrets import Secret
from nasflow.config.services.hosted.base import WebServiceConfig


class DltsServiceConfig(WebServiceConfig):
    """A DLTS cluster, reached by its dashboard. Its jobs see `work_dir` and the code under the same path."""

    own: ClassVar[tuple[str, ...]] = ("team", "vcName", "userName", "jobName", "cmd")
    kind: Literal["dlts"] = Field(default="dlts", description="a DLTS cluster")
    url: str = Field(description="of its dashboard")
    cluster: str = Field(default=".default", min_length=1, description="one of the dashboard's; default: its first")
    team: str = Field(min_length=1, description="whose resources jobs take")
    email: str = Field(min_length=3, description="whose jobs they are")
    password: Secret
    image: str = Field(min_length=1, description="container image with Python, torch and what nasflow needs")
    gpu_type: str | None = Field(default=None, title="GPU type", description="default: the team's first")
    extra: dict[str, Any] = Field(
        default={}, title="Job", description="merged into what is submitted, as {mountpoints: [...]}"
    )
