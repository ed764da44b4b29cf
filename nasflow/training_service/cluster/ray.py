"""Runs jobs on a Ray cluster through its Jobs API: each is a Ray job with a program as its entry point."""

import logging
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.cluster.ray import RayServiceConfig
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.base import ClusterService, ClusterSilentError
from nasflow.training_service.cluster.ray_jobs import RayJob, RayJobs
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.local.service import RUNNER
from nasflow.training_service.local.slots import job_environment
from nasflow.training_service.machine.environment import EXPLICIT

_LOG = logging.getLogger(__name__)

_POLL_SECONDS = 1.0
# Ray kills the process group of an entry point up to a second after its supervisor has died. Outside that group,
# `node_program` gets SIGTERM instead, and first ends what the job started, whatever session that is in.
_OWN_SESSION = "setsid --wait"
_STATUS = {
    "PENDING": JobStatus.PENDING,
    "RUNNING": JobStatus.RUNNING,
    "SUCCEEDED": JobStatus.EXITED,
    "FAILED": JobStatus.EXITED,
    "STOPPED": JobStatus.LOST,
}
_GIVEN_UP = "Job supervisor actor failed to start within"  # RAY_JOB_START_TIMEOUT_SECONDS, as while others compute
_NO_ROOM = (
    "Ray had no room for the job in time; lower training_service.max_jobs, or raise RAY_JOB_START_TIMEOUT_SECONDS "
    "where Ray's head is started"
)


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
        # jobs have the cluster's environment
        self._withheld = secrets.withheld - secrets.needed - self._storage.needed_variables()
        self._jobs = RayJobs(config)

    def validate(self) -> None:  # noqa: D102
        super().validate()
        self._jobs.version()
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
        entry = f"exec {_OWN_SESSION} {shlex.join(program)} >>{log} 2>&1 </dev/null"
        self._jobs.submit(run.name, entry, config.cpus_per_job, config.gpus_per_job)

    def _look(self) -> Mapping[str, Seen]:
        return {job.submission_id: _seen(job) for job in self._jobs.jobs(name_prefix(self._root))}

    def _withdraw(self, names: Sequence[str]) -> None:
        for name in names:
            self._jobs.stop(name)

    def _end(self, run: Run) -> JobState | None:
        """As the base class; a job that Ray gave up before it began is submitted again, which is no retry."""
        seen = self._seen.get(run.name)
        given_up = seen is not None and seen.reason == _NO_ROOM and not self._records.cancel_mark(run.job_id).exists()
        if not given_up or run.began():
            return super()._end(run)
        _LOG.warning("job %s: %s; it is submitted again", run.job_id, _NO_ROOM)
        self._records.new_run(run.job_id)  # which the cluster does not have yet
        return None

    def _own_log(self, run: Run) -> str:
        try:
            log = self._jobs.log(run.name)
        except ClusterSilentError:
            return ""
        return "\n".join(line for line in log.splitlines() if not line.startswith("Running entrypoint "))


def _seen(job: RayJob) -> Seen:
    text = " ".join((job.message or "").split())[:300]
    ran = job.driver_node_id is not None
    if not ran and job.status == "FAILED" and text.startswith(_GIVEN_UP):
        return Seen(JobStatus.LOST, _NO_ROOM, ran=False)
    return Seen(_STATUS[job.status], f"Ray's job is {job.status.lower()}: {text}", ran=ran)
