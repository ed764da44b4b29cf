"""The section of the PAI-DLC service."""

from typing import Any, ClassVar, Literal

from pydantic import Field

from nasflow.config.secret.secrets import Secret
from nasflow.config.services.hosted.base import HostedConfig


class DlcServiceConfig(HostedConfig):
    """Alibaba Cloud's PAI-DLC, reached by its SDK. Its jobs see `work_dir` and the code under the same path."""

    own: ClassVar[tuple[str, ...]] = ("DisplayName", "WorkspaceId", "UserCommand")
    kind: Literal["dlc"] = Field(default="dlc", description="Alibaba Cloud's PAI-DLC")
    region: str = Field(min_length=1, pattern=r"^[a-z0-9-]+$", description="as cn-hangzhou")
    workspace_id: str = Field(min_length=1, description="the workspace of the jobs")
    access_key_id: Secret
    access_key_secret: Secret
    image: str = Field(min_length=1, description="container image with Python, torch and what nasflow needs")
    job_type: str = Field(default="PyTorchJob", description="how DLC calls jobs of one process")
    ecs_spec: str | None = Field(
        default=None, title="ECS spec", description="kind of machine; default: cores, GPUs and memory are asked for"
    )
    resource_id: str | None = Field(default=None, description="the quota that jobs take from; default: pay as you go")
    endpoint: str | None = Field(
        default=None, pattern=r"^https?://[\w.:-]+$", description="of DLC, as https://host; default: the region's"
    )
    extra: dict[str, Any] = Field(
        default={}, title="Job", description="merged into CreateJob, as {DataSources: [{DataSourceId: d-1}]}"
    )
