"""The section of the Azure Machine Learning service."""

from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from nasflow.config.secret.secrets import Secret
from nasflow.config.services.hosted.base import WebServiceConfig

_NAME = r"[\w.-]+"


class AzuremlServiceConfig(WebServiceConfig):
    """A workspace of Azure Machine Learning, reached by Azure's REST API."""

    own: ClassVar[tuple[str, ...]] = ("jobType", "command")
    kind: Literal["azureml"] = Field(default="azureml", description="Azure Machine Learning")
    subscription_id: str = Field(pattern=r"^[0-9A-Za-z-]+$", description="of the workspace")
    resource_group: str = Field(pattern=r"^[\w.()-]+$", description="of the workspace")
    workspace_name: str = Field(pattern=rf"^{_NAME}$", description="the workspace of the jobs")
    compute_target: str = Field(pattern=rf"^{_NAME}$", description="the workspace's compute that runs jobs")
    image: str | None = Field(
        default=None, min_length=1, description="container image with Python, torch and what nasflow needs"
    )
    environment: str | None = Field(
        default=None,
        pattern=rf"^(azureml://registries/\S+|{_NAME}:{_NAME})$",
        description="in place of image: one of the workspace's as name:version, or a registry's as "
        "azureml://registries/...",
    )
    token: Secret | None = Field(
        default=None, description="an access token for Azure Resource Manager; default: the account of azure-identity"
    )
    instance_type: str | None = Field(
        default=None, min_length=1, description="of the nodes, if compute_target has several"
    )
    experiment_name: str = Field(default="nasflow", pattern=r"^[\w.-]+$", description="under which jobs are listed")
    url: str = Field(default="https://management.azure.com", description="of Azure Resource Manager")
    extra: dict[str, Any] = Field(
        default={},
        title="Job",
        description="merged into each job's properties, as {identity: {identityType: Managed}}",
    )

    @model_validator(mode="after")
    def _image_or_environment(self) -> "AzuremlServiceConfig":
        if (self.image is None) == (self.environment is None):
            raise ValueError("give either image or environment, whose container jobs run in")
        return self
