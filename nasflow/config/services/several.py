"""The section of several services at once."""

from typing import Annotated, Literal

from pydantic import Field, field_validator

from nasflow.config.services.cluster.dask import DaskServiceConfig
from nasflow.config.services.cluster.kubernetes import KubernetesServiceConfig
from nasflow.config.services.cluster.operators import (
    AdaptdlServiceConfig,
    FrameworkControllerServiceConfig,
    KubeflowServiceConfig,
)
from nasflow.config.services.cluster.ray import RayServiceConfig
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.config.services.custom import CustomServiceConfig
from nasflow.config.services.hosted.azureml import AzuremlServiceConfig
from nasflow.config.services.hosted.dlc import DlcServiceConfig
from nasflow.config.services.hosted.dlts import DltsServiceConfig
from nasflow.config.services.hosted.openpai import OpenpaiServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.ssh import SshServiceConfig
from nasflow.config.values import Section

OneOfSeveral = Annotated[
    LocalServiceConfig
    | SshServiceConfig
    | SlurmServiceConfig
    | RayServiceConfig
    | DaskServiceConfig
    | KubernetesServiceConfig
    | KubeflowServiceConfig
    | FrameworkControllerServiceConfig
    | AdaptdlServiceConfig
    | OpenpaiServiceConfig
    | DltsServiceConfig
    | DlcServiceConfig
    | AzuremlServiceConfig
    | CustomServiceConfig,
    Field(discriminator="kind"),
]
"""The section of a service that may be one of several: any but `debug` and `prefect`.

A custom class derives from `nasflow.training_service.files.shared_root.RootHere`.
"""


class SeveralServicesConfig(Section):
    """Several services at once, each of another kind. A list of their sections means the same."""

    kind: Literal["several"] = Field(default="several", description="several services at once")
    services: list[OneOfSeveral] = Field(min_length=1, description="the sections of the services, the preferred first")

    @field_validator("services")
    @classmethod
    def _kinds_once(cls, services: list[OneOfSeveral]) -> list[OneOfSeveral]:
        kinds = [service.kind for service in services]
        if twice := next((kind for kind in kinds if kinds.count(kind) > 1), None):
            raise ValueError(f"'{twice}' is listed twice; give one section its slots, hosts or jobs")
        return services
