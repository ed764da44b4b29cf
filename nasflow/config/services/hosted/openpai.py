"""The section of the OpenPAI service."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from nasflow.config.secret.secrets import Secret
from nasflow.config.services.hosted.base import WebServiceConfig


class OpenpaiServiceConfig(WebServiceConfig):
    """An OpenPAI cluster, reached by its REST API. Its jobs see `work_dir` and the code under the same path."""

    own: ClassVar[tuple[str, ...]] = (
        "protocolVersion",
        "name",
        "type",
        "taskRoles.job.instances",
        "taskRoles.job.commands",
    )
    kind: Literal["openpai"] = Field(default="openpai", description="an OpenPAI cluster")
    url: str = Field(description="of its REST server, as https://pai.example.com/rest-server")
    user: str = Field(min_length=1, pattern=r"^[\w.@-]+$", description="whose jobs they are")
    token: Secret
    image: str = Field(min_length=1, description="container image with Python, torch and what nasflow needs")
    virtual_cluster: str = Field(default="default", min_length=1, description="whose resources jobs take")
    sku: str | None = Field(
        default=None, title="SKU type", description="of Hived's scheduler; default: none is asked for"
    )
    extra: dict[str, Any] = Field(
        default={}, title="Job protocol", description="merged into each job's, as {extras: {storages: [{name: nfs}]}}"
    )
