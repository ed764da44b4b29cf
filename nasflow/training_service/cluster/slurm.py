"""Runs jobs on a Slurm cluster through its client commands: sbatch, squeue, scancel."""

import logging
import os
import shlex
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from nasflow.clean_text import one_line
from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.cluster.slurm import SlurmServiceConfig
from nasflow.errors import ServiceError
from nasflow.system.small_files import write_aside
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterFullError, ClusterService, ClusterSilentError
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.cluster.slurm_options import check_options
from nasflow.training_service.local.service import RUNNER
from nasflow.training_service.local.slots import job_environment
from nasflow.training_service.machine.environment import inherited

_LOG = logging.getLogger(__name__)

_ANSWERS_WITHIN = 60.0  # seconds; a busy slurmctld is slow
# Messages of its commands, in lower case, for faults that the request did not cause (slurm_errno.c).
_SILENT = (
    "unable to contact",
    "timed out",
    "connection refused",
    "communication",
    "temporarily",
    "try again",
    "zero bytes",
    "standby mode",
    "message send failure",
    "message receive failure",
    "protocol authentication error",
)
# Those for limits of the number of jobs, and for a partition that is away, which time mends. A job that can never be
# accepted may get the same texts.
_FULL = (
    "job submit limit",
    "submitjob",  # as in QOSMaxSubmitJobPerUserLimit and AssocGrpSubmitJobsLimit
    "required partition not available",
)
_FIXED = ("squeue", "scancel")  # commands whose arguments no config changes, so that it can't be to blame
# Variables of sbatch that make something else of the submission than one job in this cluster, begun later.
_NOT_ONE_JOB = {"SBATCH_ARRAY_INX", "SBATCH_CLUSTERS", "SBATCH_WAIT"}
_AT_ONCE = 100  # job ids, because a command line has a greatest length
# States of squeue(1) by their meaning here. A job in any other state, such as COMPLETING, may still have processes.
_WAITING = {"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "RESV_DEL_HOLD", "SPECIAL_EXIT"}
_EXITED = {"COMPLETED", "FAILED"}
_LOST = {
    "BOOT_FAIL": "its node did not start",
    "CANCELLED": "it was cancelled there, by scancel or because of a dependency",
    "DEADLINE": "it missed its deadline",
    "NODE_FAIL": "its node failed",
    "PREEMPTED": "another job took its place",
    "REVOKED": "another cluster took it",
    "TIMEOUT": "it reached its time limit; set training_service.time_limit (minutes) to what jobs need",
}
_OUT_OF_MEMORY = "OUT_OF_MEMORY"
_FIELDS = "%i|%T|%r|%N|%j"  # id, state, reason, nodes, name


class SlurmService(ClusterService):
    """Runs each job as a batch job of one task; of a trial on several nodes, that task starts the others' (`srun`).

    A job is identified by its name, which is unique for each run. Slurm's own job id is not recorded, because that
    can't be done atomically with the submission. Slurm's accounting is not needed.

    The batch script sets environment variables, runs the user's `env_setup`, and then executes `node_program`.

    Args:
        config: the resources that each job requests.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
        secrets: which environment variables jobs don't inherit.
    """

    kind = "slurm"
    passes_secrets = True

    def __init__(
        self,
        config: SlurmServiceConfig,
        root: Path,
        runner: str = RUNNER,
        secrets: JobSecrets = NO_SECRETS,
    ):
        super().__init__(
            root, config.max_jobs, config.poll_seconds, config.abandoned_after, runner, storage=config.storage
        )
        self._config = config
        self._withheld = secrets.withheld
        self._accepted = False  # whether Slurm has taken a job of this study

    def validate(self) -> None:  # noqa: D102
        check_options(self._config)
        super().validate()
        if clusters := os.environ.get("SLURM_CLUSTERS"):  # sites may set it to the name of this very cluster
            _LOG.warning(
                "SLURM_CLUSTERS (%r) does not count: jobs go to the cluster of Slurm's configuration here; for another "
                "one, let SLURM_CONF name its slurm.conf",
                one_line(clusters),
            )
        missing = [name for name in ("sbatch", "squeue", "scancel", "sinfo") if shutil.which(name) is None]
        if missing:
            raise ServiceError(
                f"training_service: there is no '{missing[0]}' here; run the search where Slurm's commands are "
                "(a login node), or add their folder to PATH"
            )
        partitions = sorted(set(self._call("sinfo", "--all", "--noheader", "--format=%R").split()))
        partition = self._config.partition
        if partition is not None and partition not in partitions:
            raise ServiceError(
                f"training_service.partition: Slurm has no partition '{partition}', but {', '.join(partitions)}"
            )
        if self._records.dir.exists():
            self._look()  # it learns whether Slurm has jobs of this study, which may be what fills a limit
        with suppress(ClusterFullError):
            self._call("sbatch", "--test-only", *self._options(self._config.most_nodes), given="#!/bin/sh\n")

    def _give(self, run: Run) -> None:
        script = run.file("sh")
        write_aside(script, self._script(run))
        options = self._options(run.spec().nodes)
        self._call("sbatch", "--parsable", f"--job-name={run.name}", *options, str(script))
        self._accepted = True

    def _look(self) -> Mapping[str, Seen]:
        prefix = name_prefix(self._root)
        seen: dict[str, Seen] = {}
        for number, state, reason, nodes, name in self._listed():
            # A name appears twice if a controller was killed while submitting it and the next one submitted it again.
            if name.startswith(prefix) and (name not in seen or seen[name].status.finished):
                seen[name] = _seen(number, state, reason, nodes)
        self._accepted |= bool(seen)
        return seen

    def _withdraw(self, names: Sequence[str]) -> None:
        wanted = set(names)
        listed = [(number, state) for number, state, _, _, name in self._listed() if name in wanted]
        alive = [number for number, state in listed if not _seen(number, state, "", "").status.finished]
        for first in range(0, len(alive), _AT_ONCE):
            self._call("scancel", "--quiet", *alive[first : first + _AT_ONCE])

    def _listed(self) -> Iterator[Sequence[str]]:
        """Yield the `_FIELDS` of this user's jobs."""
        which = ("--all", "--states=all", f"--user={os.geteuid()}")  # also those in hidden partitions
        for line in self._call("squeue", "--noheader", *which, f"--format={_FIELDS}").splitlines():
            yield line.split("|", 4)

    def _options(self, nodes: int) -> list[str]:
        """Return the options of sbatch for a job; what it requests is that of each node."""
        config = self._config
        options = [
            "--output=/dev/null",  # the script writes to the job's log
            f"--chdir={self._storage.folder}",
            "--export=ALL",  # of what _environment leaves
            "--no-requeue",
            f"--nodes={nodes}",
            "--ntasks-per-node=1",
            f"--cpus-per-task={config.cpus_per_job}",
        ]
        if config.partition is not None:
            options.append(f"--partition={config.partition}")
        if config.account is not None:
            options.append(f"--account={config.account}")
        if config.time_limit is not None:
            options.append(f"--time={config.time_limit}")
        if config.gpus_per_job:
            options.append(f"--gres=gpu:{config.gpus_per_job}")
        if config.memory_gb is not None:
            options.append(f"--mem={round(config.memory_gb * 1024)}M")
        return [*options, *config.options]

    def _script(self, run: Run) -> str:
        config = self._config
        environment = job_environment(config.cpus_per_job, bool(config.gpus_per_job))
        if (path := self._storage.import_path) is not None:
            environment["PYTHONPATH"] = path
        if not config.gpus_per_job:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        program = [config.python or self._storage.python, *self._program(run)]
        if config.memory_gb is not None:
            program += ["--memory", str(round(config.memory_gb * 2**30))]
        log = self._storage.log(run.job_id)
        lines = [
            "#!/bin/bash",
            f"exec >>{shlex.quote(log)} 2>&1 </dev/null",
            *(f"export {name}={shlex.quote(value)}" for name, value in environment.items()),
            *([config.env_setup] if config.env_setup else []),
            f"exec {shlex.join(program)}",
        ]
        return "\n".join(lines) + "\n"

    def _environment(self, command: str) -> dict[str, str]:
        """Return the environment of one of Slurm's commands; jobs inherit that of sbatch.

        It has no secrets but the storage's, where jobs need them, and none of Slurm's own variables, which describe a
        job that this process may itself be in. The user's defaults for sbatch count, but not those for commands whose
        output is read here, because they would hide jobs from it.
        """
        storage = {} if command in _FIXED else self._secret_environment()
        variables = {**inherited(self._withheld, self._config.pass_env), **storage}
        filters = () if command == "sbatch" else (f"{command.upper()}_",)
        removed = {name for name in variables if name.startswith(("SLURM_", *filters))} - {"SLURM_CONF"}
        return {name: value for name, value in variables.items() if name not in removed | _NOT_ONE_JOB}

    def _call(self, *command: str, given: str = "") -> str:
        """Run one of Slurm's commands and return its output.

        Raises:
            ClusterSilentError: Slurm does not answer.
            ClusterFullError: Slurm has taken a job of this study, and takes no more for now.
            ServiceError: Slurm refuses the request.
        """
        try:
            done = subprocess.run(
                command,
                input=given,
                env=self._environment(command[0]),
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                timeout=_ANSWERS_WITHIN,
            )
        except subprocess.TimeoutExpired:
            raise ClusterSilentError(f"training_service: Slurm's {command[0]} did not answer in time") from None
        except OSError as error:  # the machine lacks memory or processes, or the folder of its programs is away
            raise ClusterSilentError(f"training_service: Slurm's {command[0]} can't be started: {error}") from error
        if done.returncode == 0:
            return done.stdout
        words = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        if command[0] in _FIXED or any(text in words.lower() for text in _SILENT):
            raise ClusterSilentError(f"training_service: Slurm does not answer: {words}")
        if self._accepted and any(text in words.lower() for text in _FULL):
            raise ClusterFullError(f"training_service: Slurm takes no more jobs for now: {words}")
        raise ServiceError(f"training_service: Slurm refuses such jobs: {words}")


def _seen(number: str, state: str, reason: str, nodes: str) -> Seen:
    where = f" on {nodes}" if nodes else ""
    if state in _WAITING:
        return Seen(JobStatus.PENDING, f"Slurm's job {number} waits{'' if reason == 'None' else ': ' + reason}")
    if state == _OUT_OF_MEMORY:
        return Seen(JobStatus.EXITED, f"Slurm ended job {number}{where}: it ran out of memory", out_of_memory=True)
    if state in _EXITED:
        return Seen(JobStatus.EXITED, f"Slurm's job {number} ended{where}: {state}, {reason}", ran=bool(nodes))
    if state in _LOST:
        reason = f"Slurm ended its job {number}{where}: {_LOST[state]}"
        return Seen(JobStatus.LOST, reason, ran=bool(nodes), overtime=state == "TIMEOUT")
    return Seen(JobStatus.RUNNING)
