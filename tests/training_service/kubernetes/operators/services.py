"""The services under test, and what their tests share."""

import sys
from pathlib import Path

from nasflow.config.services.cluster.operators import (
    AdaptdlServiceConfig,
    FrameworkControllerServiceConfig,
    KubeflowServiceConfig,
)
from nasflow.testing.training_service import until
from nasflow.training_service.base import JobHandle
from nasflow.training_service.cluster.kubernetes.adaptdl import AdaptdlService
from nasflow.training_service.cluster.kubernetes.frameworkcontroller import FrameworkControllerService
from nasflow.training_service.cluster.kubernetes.kubeflow import PyTorchJobService, TrainJobService
from nasflow.training_service.cluster.kubernetes.pods import PodService
from tests.kubernetes.node import IMAGE

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"


def _options(slots: int, options: dict) -> dict:
    return {"image": IMAGE, "python": sys.executable, "poll_seconds": 0.3, "max_jobs": slots, **options}


def pytorch_job(root: Path, slots: int = 1, runner: str = SCRIPTED, **options) -> PyTorchJobService:
    return PyTorchJobService(KubeflowServiceConfig(**_options(slots, options)), root, runner=runner)


def train_job(root: Path, slots: int = 1, runner: str = SCRIPTED, **options) -> TrainJobService:
    config = KubeflowServiceConfig(job_kind="TrainJob", **_options(slots, options))
    return TrainJobService(config, root, runner=runner)


def framework(root: Path, slots: int = 1, runner: str = SCRIPTED, **options) -> FrameworkControllerService:
    config = FrameworkControllerServiceConfig(**_options(slots, options))
    return FrameworkControllerService(config, root, runner=runner)


def adaptdl_job(root: Path, slots: int = 1, runner: str = SCRIPTED, **options) -> AdaptdlService:
    return AdaptdlService(AdaptdlServiceConfig(**_options(slots, options)), root, runner=runner)


def pod_of(cluster, service: PodService, handle: JobHandle) -> str:
    """The name of a job's pod, once there is one."""

    def found() -> list[str]:
        run = service._records.run(handle.job_id)
        return cluster.pods(f"{service.job_label}={service._name(run.name)}") if run else []

    return until(found, f"pod of {handle.job_id}")[-1]
