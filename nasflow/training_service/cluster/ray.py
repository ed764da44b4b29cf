"""Runs jobs on a Ray cluster through its Jobs API: each is a Ray job with a program as its entry point."""

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ray.job_submission import JobStatus as RayStatus
from ray.job_submission import JobSubmissionClient

from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.secret_url import hide_passwords
from nasflow.config.secrets import reveal
from nasflow.config.services.ray import RayServiceConfig
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterService, ClusterSilentError, Seen
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.local.service import RUNNER
from nasflow.training_service.local.slots import job_environment
from nasflow.training_service.machine.environment import EXPLICIT

_POLL_SECONDS = 1.0
_STATUS = {
    RayStatus.PENDING: JobStatus.PENDING,
    RayStatus.RUNNING: JobStatus.RUNNING,
    RayStatus.SUCCEEDED: JobStatus.EXITED,
    RayStatus.FAILED: JobStatus.EXITED,
    RayStatus.STOPPED: JobStatus.LOST,
}


class RayService(ClusterService):
    """Runs each job as a Ray job with the run's name as its submission id; Ray accepts each id once.

    Args:
        config: the address of the cluster's dashboard, and the resources of each job.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
        secrets: which environment variables jobs don't inherit.
    """

    kind = "ray"

    def __init__(
        self,
        config: RayServiceConfig,
        root: Path,
        runner: str = RUNNER,
        secrets: JobSecrets = NO_SECRETS,
    ):
        super().__init__(root, config.max_jobs, _POLL_SECONDS, config.abandoned_after, runner, storage=config.storage)
        self._config = config
        self._withheld = (
            secrets.withheld - secrets.needed - self._storage.needed_variables()
        )  # jobs have the cluster's environment
        self._client: JobSubmissionClient | None = None

    def validate(self) -> None:  # noqa: D102
        super().validate()
        self._look()

    def _give(self, run: Run) -> None:
        config = self._config
        environment = job_environment(max(1, int(config.cpus_per_job)), bool(config.gpus_per_job))
        if (path := self._storage.import_path) is not None:
            environment["PYTHONPATH"] = path
        if not config.gpus_per_job:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        removed = [name for name in sorted({*EXPLICIT, *self._withheld}) if name not in config.pass_env]
        unset = [part for name in removed for part in ("-u", name)]
        variables = (f"{name}={value}" for name, value in environment.items())
        program = ["env", *unset, *variables, self._storage.python, *self._program(run)]
        log = shlex.quote(self._storage.log(run.job_id))
        entry = f"exec {shlex.join(program)} >>{log} 2>&1 </dev/null"

        def give(client: JobSubmissionClient) -> None:
            try:
                client.submit_job(
                    entrypoint=entry,
                    submission_id=run.name,
                    entrypoint_num_cpus=config.cpus_per_job,
                    entrypoint_num_gpus=config.gpus_per_job,
                )
            except RuntimeError as error:
                if "already exists" not in str(error):
                    raise

        self._ask(give)

    def _look(self) -> Mapping[str, Seen]:
        prefix = name_prefix(self._root)
        jobs = self._ask(lambda client: client.list_jobs())
        return {
            job.submission_id: _seen(job.status, job.message or "", job.driver_node_id is not None)
            for job in jobs
            if job.submission_id is not None and job.submission_id.startswith(prefix)
        }

    def _withdraw(self, names: Sequence[str]) -> None:
        known = self._look()
        for name in names:
            if name in known and not known[name].status.finished:
                self._ask(partial(_stop, name))

    def _ask(self, what: Callable[[JobSubmissionClient], Any]) -> Any:
        address = reveal(self._config.address, "training_service.address")
        where = f"Ray's Jobs API at {self._config.address}"
        try:
            self._client = self._client or JobSubmissionClient(address)
            return what(self._client)
        except (OSError, RuntimeError) as error:  # requests' errors are OSErrors
            self._client = None
            text = hide_passwords(" ".join(str(error).split()), address)[:300]
            raise ClusterSilentError(
                f"training_service.address: {where} does not answer as it should: {text}"
            ) from error


def _stop(name: str, client: JobSubmissionClient) -> None:
    client.stop_job(name)


def _seen(status: RayStatus, message: str, ran: bool) -> Seen:
    text = " ".join(message.split())[:300]
    return Seen(_STATUS[status], f"Ray's job is {status.value.lower()}: {text}", ran=ran)
