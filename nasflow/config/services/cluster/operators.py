"""The sections of services for operators on Kubernetes."""

from typing import Any, Literal

from pydantic import Field, PositiveInt

from nasflow.config.durations import Duration
from nasflow.config.services.cluster.kubernetes import PodsConfig


class OperatorConfig(PodsConfig):
    """What the services for operators have in common."""

    time_limit: Duration | None = Field(
        default=None, description="that a job's pod may take on its node; then Kubernetes ends it"
    )


class KubeflowServiceConfig(OperatorConfig):
    """A Kubernetes cluster with Kubeflow's Training Operator or Kubeflow Trainer. Keys are those of `kubernetes`."""

    kind: Literal["kubeflow"] = Field(default="kubeflow", description="Kubeflow on a Kubernetes cluster")
    job_kind: Literal["PyTorchJob", "TrainJob"] = Field(
        default="PyTorchJob",
        description="PyTorchJob of Training Operator (v1), or TrainJob of Kubeflow Trainer (v2)",
    )
    ttl_seconds_after_finished: PositiveInt = Field(
        default=3600,
        title="TTL seconds after finished",
        description="until the cluster removes a PyTorchJob that has ended; when the search ends, all are deleted",
    )
    pod_template: dict[str, Any] = Field(
        default={},
        description="merged last into the pod template; the job's container is named 'pytorch', of a TrainJob 'node'",
    )


class FrameworkControllerServiceConfig(OperatorConfig):
    """A Kubernetes cluster with FrameworkController. Keys are those of `kubernetes`."""

    kind: Literal["frameworkcontroller"] = Field(
        default="frameworkcontroller", description="FrameworkController on a Kubernetes cluster"
    )


class AdaptdlServiceConfig(OperatorConfig):
    """A Kubernetes cluster with AdaptDL. Keys are those of `kubernetes`."""

    kind: Literal["adaptdl"] = Field(default="adaptdl", description="AdaptDL on a Kubernetes cluster")
    preemptible: bool = Field(default=True, description="AdaptDL may end a job to make room for another")
