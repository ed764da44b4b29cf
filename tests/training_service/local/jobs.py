"""What the tests of the local service share."""

import json
from typing import Any

import psutil

from nasflow.testing.training_service import finish, numbers, script
from nasflow.training_service.base import JobHandle, TrainingService


def report(service: TrainingService, job_id: str) -> dict[str, Any]:
    """What a job says of its process."""
    assert finish(service, service.submit(script(job_id, ["report", "report.json"]))).exit_code == 0
    found: dict[str, Any] = json.loads(service.fetch(f"jobs/{job_id}/report.json").read_text())
    return found


def kill_worker(service: TrainingService, handle: JobHandle) -> None:
    """SIGKILL to the worker of a running job."""
    (pid,) = numbers(service, f"jobs/{handle.job_id}/runs")
    psutil.Process(pid).parent().kill()
