"""Runs jobs on a Kubernetes cluster: each run is a Job of the API group `batch/v1`."""

import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from nasflow.clean_text import clean_text
from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.kubernetes import KubernetesServiceConfig
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.base import ClusterService, ClusterSilentError, Seen
from nasflow.training_service.cluster.kubernetes import manifest, states
from nasflow.training_service.cluster.kubernetes.api import KubernetesApi, RefusedError, rights_text
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.local.service import RUNNER
from nasflow.training_service.local.slots import job_environment

_LOG = logging.getLogger(__name__)

_RIGHTS = [("create", "jobs"), ("list", "jobs"), ("delete", "jobs"), ("list", "pods"), ("delete", "pods")]
_SECRET_RIGHTS = [("create", "secrets"), ("update", "secrets"), ("delete", "secrets")]


class KubernetesService(ClusterService):
    """Runs each job as a Kubernetes Job with the run's name; Kubernetes accepts each name once.

    The Job starts one pod and never restarts it. Jobs and pods are found by a label of the root. Variables with secrets
    go to pods by a Secret of the root, which `cleanup` deletes with all Jobs.

    Args:
        config: the image, and the resources that each job requests.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
        secrets: which secrets of the search jobs need.
    """

    kind = "kubernetes"
    passes_secrets = True

    def __init__(
        self,
        config: KubernetesServiceConfig,
        root: Path,
        runner: str = RUNNER,
        secrets: JobSecrets = NO_SECRETS,
    ):
        super().__init__(
            root, config.max_jobs, config.poll_seconds, config.abandoned_after, runner, storage=config.storage
        )
        self._config, self._secrets = config, secrets
        self._prefix = name_prefix(self._root)
        self._selector = f"{manifest.ROOT_LABEL}={manifest.root_label(self._prefix)}"
        self._api = KubernetesApi(config.kubeconfig, config.context, config.namespace)
        self._lasting = states.Clock()
        self._said: set[tuple[str, bool]] = set()
        self._given_secret: Mapping[str, str] = {}

    def validate(self) -> None:  # noqa: D102
        super().validate()
        rights = [*_RIGHTS, *(_SECRET_RIGHTS if self._variables() else [])]
        if missing := list(self._api.forbidden(rights)):
            raise ServiceError(rights_text(missing, self._config.namespace))
        self._api.create("jobs", self._job(Run(self._root, "validate", "dry-run")), dry_run=True)

    def cleanup(self) -> None:  # noqa: D102
        super().cleanup()
        for job in self._api.list("jobs", self._selector):
            self._api.delete("jobs", job["metadata"]["name"])
        if self._variables():
            self._api.delete("secrets", manifest.secret_name(self._prefix))
        self._given_secret = {}

    # --- what the base class asks for ----------------------------------------------------------------------------

    def _give(self, run: Run) -> None:
        self._give_secret()
        try:
            self._api.create("jobs", self._job(run))
        except RefusedError as error:
            if error.status != 409:  # else it was submitted before
                raise

    def _look(self) -> Mapping[str, Seen]:
        given = [run for job_id in self._records.taken() if (run := self._records.run(job_id)) is not None]
        began = {run.name for run in given if run.began()}  # before the pods' states are read
        jobs = {_run_name(job): job for job in self._api.list("jobs", self._selector)}
        pods: dict[str, list[Any]] = {}
        for pod in self._api.list("pods", self._selector):
            pods.setdefault(_run_name(pod), []).append(pod)
        self._lasting.look()
        found: dict[str, Seen] = {}
        for name in jobs.keys() | pods.keys():
            job, of_job = jobs.get(name), pods.get(name, [])
            seen = states.seen(job, of_job, name in began, self._lasting)
            found[name] = self._explained(name, seen, states.waits_for_a_pod(job, of_job))
        for name in {run.name for run in given} & self._seen.keys() - found.keys():
            before = self._seen[name]
            deleted = Seen(JobStatus.LOST, "its Job was deleted by another program", ran=name in began)
            found[name] = before if before.status.finished else deleted
        return found

    def _withdraw(self, names: Sequence[str]) -> None:
        for name in names:
            job = manifest.job_name(name)
            if not self._api.delete("jobs", job):  # its pods may have been left when it was deleted
                for pod in self._api.list("pods", f"{self._selector},{manifest.NAME}={job}"):
                    self._api.delete("pods", pod["metadata"]["name"])

    def _settle(self, job_id: str, slot: str, state: JobState, run: Run | None) -> None:
        """Record how a job ended; Kubernetes would start the pod of a lost one again, or keep it waiting."""
        super()._settle(job_id, slot, state, run)
        if run is not None and state.status is not JobStatus.EXITED:
            self._withdraw_or_say([run.name])

    # --- what is submitted ---------------------------------------------------------------------------------------

    def _job(self, run: Run) -> dict[str, Any]:
        config = self._config
        environment = job_environment(max(1, int(config.cpus_per_job)), bool(config.gpus_per_job))
        if (path := self._storage.import_path) is not None:
            environment["PYTHONPATH"] = path
        if not config.gpus_per_job:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        program = [config.python, *self._program(run)]
        if config.memory_gb is not None:
            program += ["--memory", str(round(config.memory_gb * 2**30))]
        log = self._storage.log(run.job_id)
        with_secret = bool(self._variables())
        return manifest.job(
            config, self._prefix, run.name, program, log, environment=environment, with_secret=with_secret
        )

    def _variables(self) -> Mapping[str, str]:
        """Return the variables, some of them secret, that jobs get of this process or for their files."""
        wanted = {*self._secrets.needed, *self._config.pass_env}
        here = {name: os.environ[name] for name in wanted if name in os.environ}
        return {**here, **self._secret_environment()}

    def _give_secret(self) -> None:
        variables = self._variables()
        if not variables or variables == self._given_secret:
            return
        body = manifest.secret(self._prefix, variables)
        try:
            self._api.create("secrets", body)
        except RefusedError as error:
            if error.status != 409:
                raise
            self._api.replace("secrets", body)
        self._given_secret = variables

    # --- why runs wait -------------------------------------------------------------------------------------------

    def _explained(self, name: str, seen: Seen, without_pod: bool) -> Seen:
        """Return `seen` with the events of a run whose pod can't be made or was deleted; say why one waits for long."""
        if seen.status is JobStatus.LOST and seen.reason == states.POD_DELETED:
            return Seen(seen.status, self._event_of(name, "Preempted") or seen.reason, ran=seen.ran)
        if seen.status is not JobStatus.PENDING or seen.ran or self._lasting(name) < states.SAID_AFTER:
            return seen
        if without_pod and (why := self._event_of(name, "FailedCreate")):
            seen = Seen(seen.status, f"Kubernetes can't create its pod: {why}", ran=False)
        if (name, without_pod) not in self._said:
            self._said.add((name, without_pod))
            _LOG.warning("Kubernetes' Job %s waits: %s", manifest.job_name(name), seen.reason)
        return seen

    def _event_of(self, name: str, reason: str) -> str:
        """Return the newest event with this reason of a run's Job or pods; empty if there is none, or it is secret."""
        job = manifest.job_name(name)
        try:
            events = self._api.list("events", fields=f"reason={reason}")
        except (RefusedError, ClusterSilentError):
            return ""
        texts = [e.get("message") or "" for e in events if e["involvedObject"].get("name", "").startswith(job)]
        return clean_text(f"{reason}: {' '.join(texts[-1].split())[:300]}") if texts else ""


def _run_name(thing: Mapping[str, Any]) -> str:
    metadata = thing["metadata"]
    return str((metadata.get("annotations") or {}).get(manifest.NAME) or metadata["name"])
