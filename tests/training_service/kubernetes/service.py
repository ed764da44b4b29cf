"""The service under test, and what its tests share."""

import sys
from pathlib import Path
from typing import Any

import pytest
from kubernetes import client

from nasflow.config.services.cluster.kubernetes import KubernetesServiceConfig
from nasflow.testing.training_service import numbers, until
from nasflow.training_service.base import JobHandle
from nasflow.training_service.cluster.kubernetes.service import KubernetesService
from tests.kubernetes.node import IMAGE

SCRIPTED = "nasflow.testing.scripted_job:run_job_file"
Object = dict[str, Any]


def make(root: Path, slots: int = 1, secrets=None, runner: str = SCRIPTED, **options) -> KubernetesService:
    options = {"image": IMAGE, "python": sys.executable, "poll_seconds": 0.3, "max_jobs": slots, **options}
    more = {} if secrets is None else {"secrets": secrets}
    return KubernetesService(KubernetesServiceConfig(**options), root, runner, **more)


def pods(cluster, service: KubernetesService) -> list[str]:
    """The names of the pods of a service's root."""
    return cluster.pods(service._selector)


def pod_of(cluster, service: KubernetesService, handle: JobHandle) -> str:
    """The name of a job's pod, once there is one."""
    name = f"-{handle.job_id}-"
    found = until(lambda: [pod for pod in pods(cluster, service) if name in pod], f"pod of {handle.job_id}")
    return found[-1]


def started(service: KubernetesService, handle: JobHandle) -> int:
    """The process of a job, once it runs."""
    (pid,) = until(
        lambda: service.status(handle) and numbers(service, f"jobs/{handle.job_id}/runs"), "start of the job"
    )
    return pid


def reason(service: KubernetesService, handle: JobHandle, part: str, seconds: float = 30) -> str:
    """The reason of a job's state, once `part` is in it."""
    return until(lambda: r if part in (r := service.status(handle).reason) else "", f"'{part}'", seconds)


@pytest.fixture
def batch(server):
    return client.BatchV1Api(server.api)


@pytest.fixture
def core(server):
    return client.CoreV1Api(server.api)
