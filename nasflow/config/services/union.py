"""The `training_service` section of the search config: where jobs run."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

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
from nasflow.config.services.debug import DebugServiceConfig
from nasflow.config.services.hosted.azureml import AzuremlServiceConfig
from nasflow.config.services.hosted.dlc import DlcServiceConfig
from nasflow.config.services.hosted.dlts import DltsServiceConfig
from nasflow.config.services.hosted.openpai import OpenpaiServiceConfig
from nasflow.config.services.local import LocalServiceConfig
from nasflow.config.services.prefect import PrefectServiceConfig
from nasflow.config.services.several import SeveralServicesConfig
from nasflow.config.services.ssh import SshServiceConfig

# if all keys of one kind are keys of another, a form takes the first
ServiceConfig = Annotated[
    DebugServiceConfig
    | LocalServiceConfig
    | SshServiceConfig
    | SlurmServiceConfig
    | RayServiceConfig
    | DaskServiceConfig
    | KubernetesServiceConfig
    | KubeflowServiceConfig
    | FrameworkControllerServiceConfig
    | AdaptdlServiceConfig
    | PrefectServiceConfig
    | OpenpaiServiceConfig
    | DltsServiceConfig
    | DlcServiceConfig
    | AzuremlServiceConfig
    | CustomServiceConfig
    | SeveralServicesConfig,
    Field(discriminator="kind"),
]
"""The section of any training service, chosen by `kind`."""


def each_service(config: ServiceConfig) -> Sequence[ServiceConfig]:
    """Return the services of a section: those of `several`, or the one that it is."""
    return config.services if isinstance(config, SeveralServicesConfig) else [config]
