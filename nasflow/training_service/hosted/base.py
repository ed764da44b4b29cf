"""Base class of hosted services: what they run for a job."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nasflow.config.services.hosted.base import HostedConfig
from nasflow.training_service.cluster.base import ClusterService
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.local.slots import job_environment


class HostedService(ClusterService):
    """Submits each job with the run's name, with the resources of the config.

    Jobs have the environment of their container, and inherit nothing of the controller's.

    Args:
        config: what a job takes, and how it is started.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
    """

    def __init__(self, config: HostedConfig, root: Path, runner: str):
        super().__init__(
            root, config.max_jobs, config.poll_seconds, config.abandoned_after, runner, storage=config.storage
        )
        self._hosted = config

    def _line(self, run: Run) -> str:
        """Return the line of a shell that starts a run's program."""
        config = self._hosted
        environment = job_environment(config.cpus_per_job, bool(config.gpus_per_job))
        if (path := self._storage.import_path) is not None:
            environment["PYTHONPATH"] = path
        if not config.gpus_per_job:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        variables = (f"{name}={value}" for name, value in environment.items())
        program = ["env", *variables, config.python, *self._program(run)]
        program += ["--memory", str(round(config.memory_gb * 2**30))]
        log = shlex.quote(self._storage.log(run.job_id))
        return f"exec {shlex.join(program)} >>{log} 2>&1 </dev/null"


def merged(job: Mapping[str, Any], extra: Mapping[str, Any]) -> dict[str, Any]:
    """Return a job with what the config adds: mappings are merged, all else is replaced."""
    whole = dict(job)
    for key, value in extra.items():
        mappings = isinstance(value, Mapping) and isinstance(whole.get(key), dict)
        whole[key] = merged(whole[key], value) if mappings else value
    return whole
