"""The section of the Kubernetes service, and what those of operators share with it."""

from typing import Annotated, Any, Literal

from pydantic import Field, PositiveFloat, PositiveInt, field_validator

from nasflow.config.durations import Duration
from nasflow.config.services.common import DAY, JobCount
from nasflow.config.services.storage import ClusterConfig

_OWN_LABELS = "nasflow/"
_Name = Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", max_length=253)]


class PodsConfig(ClusterConfig):
    """What the services have in common whose jobs are pods."""

    image: str = Field(min_length=1, description="of the jobs' container; has nasflow, and what your code imports")
    namespace: Annotated[_Name, Field(max_length=63)] = Field(default="default", description="of the jobs")
    kubeconfig: str | None = Field(
        default=None,
        description="a file; default: $KUBECONFIG or ~/.kube/config, or, in a pod without them, its service account",
    )
    context: str | None = Field(default=None, description="of the kubeconfig; default: its current one")
    max_jobs: JobCount = Field(default=8, description="jobs in the cluster at a time")
    cpus_per_job: PositiveFloat = Field(default=1.0, description="cores that a job requests")
    memory_gb: PositiveFloat | None = Field(default=None, description="that a job requests, and may use")
    gpus_per_job: int = Field(default=0, ge=0, description="GPUs of a job")
    gpu_resource: str = Field(
        default="nvidia.com/gpu", min_length=1, description="name of the GPUs among the nodes' resources"
    )
    node_selector: dict[str, str] = Field(default={}, description="labels of the nodes to use")
    tolerations: list[dict[str, Any]] = Field(default=[], description="taints of nodes that jobs tolerate")
    service_account: _Name | None = Field(default=None, description="of the pods; default: the namespace's")
    image_pull_secrets: list[_Name] = Field(default=[], description="Secrets for the image's registry")
    volumes: list[dict[str, Any]] = Field(default=[], description="of the pods, as one with 'work_dir'")
    volume_mounts: list[dict[str, Any]] = Field(default=[], description="where the job's container has the volumes")
    env_from_secrets: list[_Name] = Field(
        default=[],
        title="Environment from Secrets",
        description="Secrets of the namespace whose keys are environment variables of jobs",
    )
    time_limit: Duration | None = Field(default=None, description="that a job may take; then Kubernetes ends it")
    python: str = Field(default="python3", min_length=1, description="interpreter in the image")
    labels: dict[str, str] = Field(default={}, description="more labels of Jobs and pods")
    pod_template: dict[str, Any] = Field(
        default={}, description="merged last into the pod template, containers by name"
    )
    poll_seconds: PositiveFloat = Field(default=2.0, description="between two looks at the cluster")
    abandoned_after: Duration = Field(
        default=7 * DAY, description="without a controller, after which a job on a node ends itself"
    )

    @field_validator("labels")
    @classmethod
    def _others_labels(cls, labels: dict[str, str]) -> dict[str, str]:
        if own := next((name for name in labels if name.startswith(_OWN_LABELS)), None):
            raise ValueError(f"'{own}' is nasflow's own; give it another name")
        return labels


class KubernetesServiceConfig(PodsConfig):
    """A Kubernetes cluster. Its image has nasflow, and `storage` says where its pods find files.

    What is left out is left to the cluster's defaults. Volumes, mounts and tolerations have Kubernetes' own form.
    """

    kind: Literal["kubernetes"] = Field(default="kubernetes", description="a Kubernetes cluster")
    time_limit: Duration | None = Field(
        default=None, description="that a job may take with its time in the queue; then Kubernetes ends it"
    )
    ttl_seconds_after_finished: PositiveInt = Field(
        default=3600,
        title="TTL seconds after finished",
        description="until the cluster removes a Job that has ended; when the search ends, all are deleted",
    )
    pod_template: dict[str, Any] = Field(
        default={}, description="merged last into the pod template; the job's container is named 'job'"
    )
