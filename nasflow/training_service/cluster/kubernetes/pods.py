"""Base class of services whose runs are objects of Kubernetes with pods: its Jobs, or those of an operator."""

import logging
import os
import time
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

from nasflow.clean_text import clean_text
from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.cluster.kubernetes import PodsConfig
from nasflow.errors import ServiceError
from nasflow.job.node_jobs import divide
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.cluster.base import ClusterFullError, ClusterService, ClusterSilentError
from nasflow.training_service.cluster.kubernetes import manifest, states
from nasflow.training_service.cluster.kubernetes.api import KubernetesApi, RefusedError, rights_text
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.cluster.storage.base import StorageClosedError
from nasflow.training_service.local.service import RUNNER
from nasflow.training_service.local.slots import job_environment

_LOG = logging.getLogger(__name__)

SECRET_RIGHTS = [("create", "secrets"), ("update", "secrets"), ("delete", "secrets")]
"""What the service does with the Secret of a root, where there is one."""
_WAITS = "FailedCreate"  # the reason of events of a Job whose pod can't be made
_EVENTS_EVERY = 30.0  # seconds between two readings of these, which are of the whole namespace
_LEFT_FOR = 60.0  # seconds that an object may go on when its run has ended, until it is deleted
_OPEN_PODS = "status.phase!=Succeeded"
Config = TypeVar("Config", bound=PodsConfig)


def rights(resource: str, besides: str = "") -> list[tuple[str, str]]:
    """Return what a service does with its resources and with pods: verbs and resources."""
    ours = [(verb, each) for each in (resource, besides) if each for verb in ("create", "list", "delete")]
    return [*ours, ("list", "pods"), ("delete", "pods")]


class PodService(ClusterService, Generic[Config]):
    """Submits an object for each run, by a name that Kubernetes accepts once. A controller there starts its pods.

    A run has one pod, or one for each machine of a trial on several. These are alike: which of them runs the job is
    decided when their programs begin (`Run.take_place`).

    Objects and pods are found by a label of the root. Variables with secrets go to pods by a Secret of the root, which
    `cleanup` deletes with all objects.

    To add a kind of object, set the class variables, and implement `_body` and `_fate`. The controller must give pods
    the labels and annotations of the pod template.

    Args:
        config: the image, and the resources that each job requests.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
        secrets: which secrets of the search jobs need.
    """

    resource: ClassVar[str]
    """The objects: what their API calls them, in the plural."""
    api_version: ClassVar[str]
    """Their group and version."""
    container: ClassVar[str] = "job"
    """The name of the container that runs the job."""
    job_label: ClassVar[str] = manifest.NAME
    """The label of pods with the name of their object."""
    besides: ClassVar[str] = ""
    """Objects of the same API that runs share, with a label of the root; `cleanup` deletes them."""
    stay: ClassVar[bool] = False
    """Whether objects stay when their runs have ended, because the cluster removes them."""
    open_ones: ClassVar[str] = ""
    """The field selector of objects that have not succeeded; custom resources have none."""
    noun: ClassVar[str]
    """What people call one of them."""
    passes_secrets = True

    def __init__(
        self,
        config: Config,
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
        self._api = KubernetesApi(config.kubeconfig, config.context, config.namespace, self._versions())
        self._lasting = states.Clock()
        self._events: dict[str, tuple[float, list[Any]]] = {}  # by their reason, and when they were read
        self._given_secret: Mapping[str, str] = {}
        self._has_looked = False
        self._keeps_left = False  # whether it could not delete what has ended, the last time

    # --- what a kind of object implements ------------------------------------------------------------------------

    @abstractmethod
    def _body(self, meta: states.Object, pod: states.Object, nodes: int) -> states.Object:
        """Return the object with this metadata whose pods, `nodes` of them, have this template, and no restarts."""

    @abstractmethod
    def _fate(self, thing: states.Object, began: bool) -> Seen | None:
        """Return what the status of an object says of its run's end; None while that has not ended."""

    def _name(self, run: str) -> str:
        """Return the name of a run's object: a name of Kubernetes', the same each time."""
        return manifest.job_name(run)

    def _where(self, run: Run) -> str:
        return f"{self.noun} {self._name(run.name)}"

    # --- the contract --------------------------------------------------------------------------------------------

    def validate(self) -> None:  # noqa: D102
        super().validate()
        wanted = rights(self.resource, self.besides) + (SECRET_RIGHTS if self._variables() else [])
        if missing := list(self._api.forbidden(wanted)):
            raise ServiceError(rights_text(missing, self._config.namespace))
        try:
            self._create(Run(self._root, "validate", "dry-run"), self._config.most_nodes, dry_run=True)
        except ClusterFullError:
            if not self._api.list(self.resource, self._selector):  # else a search is resumed
                raise

    def cleanup(self) -> None:  # noqa: D102
        try:
            super().cleanup()
        except StorageClosedError:
            self._remove_rest()
            raise
        self._remove_rest()

    def _remove_rest(self) -> None:
        """Remove what the cluster itself still has of the study, once its jobs have ended."""
        for resource in filter(None, (self.resource, self.besides)):
            for thing in self._api.list(resource, self._selector):
                self._api.delete(resource, thing["metadata"]["name"])
        if self._names_variables():
            try:
                self._api.delete("secrets", manifest.secret_name(self._prefix))
            except RefusedError:  # without the right to, there is none where no variable is set
                if self._variables():
                    raise
        self._given_secret = {}

    # --- what the base class asks for ----------------------------------------------------------------------------

    def _give(self, run: Run) -> None:
        with self._silent_if_refused(401):
            self._give_secret()
            spec = run.spec()
            if spec.nodes > 1:
                divide(run.root, spec)
            try:
                self._create(run, spec.nodes)
            except RefusedError as error:
                if not error.exists:  # else it was submitted before
                    raise

    def _look(self) -> Mapping[str, Seen]:
        with self._silent_if_refused(401, 403):
            found = self._found()
        self._has_looked = True
        return found

    @contextmanager
    def _silent_if_refused(self, *statuses: int) -> Iterator[None]:
        """Raise ClusterSilentError for such refusals once a look has succeeded: who is refused then was known before.

        A token that is renewed just now, or a server that has not read its rules again, must not end a search.
        """
        try:
            yield
        except RefusedError as error:
            if not self._has_looked or error.status not in statuses:
                raise
            raise ClusterSilentError(str(error)) from error

    def _found(self) -> Mapping[str, Seen]:
        given = self._current()
        began = {run.name for run in given if run.began()}  # before the pods' states are read
        self._lasting.look()
        self._forget_events()
        found = self._states(given, began, self._selector, all_of_them=not self.stay)
        alive = [name for name, seen in found.items() if not seen.status.finished]
        if left := [name for name in self._settled(alive, given) if self._lasting(f"{name} is settled") > _LEFT_FOR]:
            self._withdraw_left(left)
        missing = [run for run in given if run.name in self._seen.keys() - found.keys() and run.ended() is None]
        if self.stay and missing:  # they have succeeded without a word of their own, or were deleted
            which = ",".join(self._name(run.name) for run in missing)
            selector = f"{self._selector},{manifest.NAME} in ({which})"
            found |= self._states(missing, began, selector, all_of_them=True)
        for name in {run.name for run in given} & self._seen.keys() - found.keys():
            before = self._seen[name]
            deleted = Seen(JobStatus.LOST, f"its {self.noun} was deleted by another program", ran=name in began)
            found[name] = before if before.status.finished else deleted
        return found

    def _states(
        self, given: Sequence[Run], began: Collection[str], selector: str, *, all_of_them: bool
    ) -> dict[str, Seen]:
        """Return what objects and pods say of runs; unless all are asked for, of those that have not succeeded.

        Objects that stay are more with each run, and would all be read at each look.
        """
        open_jobs, open_pods = ("", "") if all_of_them else (self.open_ones, _OPEN_PODS)
        jobs = {_run_name(job): job for job in self._api.list(self.resource, selector, open_jobs)}
        current = {run.name for run in given}
        names = {self._name(name): name for name in (*current, *jobs)}
        pods: dict[str, list[Any]] = {}
        for pod in self._api.list("pods", selector, open_pods):
            of_object = pod["metadata"]["labels"].get(self.job_label, "")
            pods.setdefault(names.get(of_object) or _run_name(pod), []).append(pod)
        found: dict[str, Seen] = {}
        for name in jobs.keys() | pods.keys():
            job, of_job = jobs.get(name), pods.get(name, [])
            # A pod whose run has ended counts as long as anything is left of it, so that `_look` deletes it.
            container = self.container if name in current else None
            seen = states.seen(job, of_job, name in began, self._lasting, self._fate, container=container)
            found[name] = self._explained(name, seen, job is not None and len(of_job) < states.pods_of(job))
        return found

    def _current(self) -> list[Run]:
        """Return the runs of all jobs that have not ended."""
        return [run for job_id in self._records.taken() if (run := self._records.run(job_id)) is not None]

    def _settled(self, names: Sequence[str], current: Sequence[Run]) -> list[str]:
        """Return those of the names whose runs have ended by the records here; a sidecar may keep a pod alive."""
        known = {run.name for run in current}
        return [name for name in names if name not in known and Run.named(self._root, name).given.exists()]

    def _withdraw(self, names: Sequence[str]) -> None:
        with self._silent_if_refused(401, 403):
            for job in map(self._name, names):
                if not self._api.delete(self.resource, job):  # its pods may have been left when it was deleted
                    for pod in self._api.list("pods", f"{self._selector},{self.job_label}={job}"):
                        self._api.delete("pods", pod["metadata"]["name"])

    def _withdraw_left(self, names: Sequence[str]) -> None:
        """Delete objects whose runs have ended; if that is refused, they stay, and the cluster is no less known."""
        try:
            self._withdraw(names)
        except ClusterSilentError as error:
            if not self._keeps_left:
                _LOG.warning("%s; jobs that have ended stay there, the search goes on", error)
            self._keeps_left = True
        else:
            self._keeps_left = False

    def _settle(self, job_id: str, slot: str, state: JobState, run: Run | None) -> None:
        """Record how a job ended; Kubernetes would start the pod of a lost one again, or keep it waiting."""
        super()._settle(job_id, slot, state, run)
        if run is not None and not (self.stay and state.status is JobStatus.EXITED):
            self._withdraw_or_say([run.name])

    # --- what is submitted ---------------------------------------------------------------------------------------

    @classmethod
    def _versions(cls) -> dict[str, str]:
        """Return group and version of each resource besides Kubernetes' own."""
        return dict.fromkeys((cls.resource, cls.besides), cls.api_version)

    def _create(self, run: Run, nodes: int = 1, *, dry_run: bool = False) -> None:
        job = self._job(run, nodes)
        try:
            self._api.create(self.resource, job, dry_run=dry_run)
        except ClusterFullError:  # objects that stay when their runs have ended count, too
            there = [_run_name(each) for each in self._api.list(self.resource, self._selector)]
            if not (ended := self._settled(there, self._current())):
                raise
            self._withdraw_left(ended)
            self._api.create(self.resource, job, dry_run=dry_run)

    def _job(self, run: Run, nodes: int = 1) -> states.Object:
        return self._body(self._meta(run, nodes), self._template(run, nodes), nodes)

    def _meta(self, run: Run, nodes: int) -> states.Object:
        return manifest.metadata(self._config, self._prefix, run.name, self._name(run.name), nodes)

    def _template(self, run: Run, nodes: int = 1) -> states.Object:
        config = self._config
        environment = job_environment(max(1, int(config.cpus_per_job)), bool(config.gpus_per_job))
        if (path := self._storage.import_path) is not None:
            environment["PYTHONPATH"] = path
        if not config.gpus_per_job:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        program = [config.python, "-u", *self._program(run)]  # some operators set PYTHONUNBUFFERED to 0
        if config.memory_gb is not None:
            program += ["--memory", str(round(config.memory_gb * 2**30))]
        if nodes > 1:
            program += ["--nodes", str(nodes)]
        log = self._storage.log(run.job_id)
        return manifest.template(
            config,
            self._prefix,
            self._meta(run, nodes),
            program,
            log,
            container=self.container,
            environment=environment,
            with_secret=bool(self._variables()),
        )

    def _variables(self) -> Mapping[str, str]:
        """Return the variables, some of them secret, that jobs get of this process or for their files."""
        wanted = {*self._secrets.needed, *self._config.pass_env}
        here = {name: os.environ[name] for name in wanted if name in os.environ}
        return {**here, **self._secret_environment()}

    def _names_variables(self) -> bool:
        """Whether the config names such variables, be they set here or not."""
        return bool(self._secrets.needed or self._config.pass_env or self._storage.has_secrets())

    def _give_secret(self) -> None:
        variables = self._variables()
        if not variables or variables == self._given_secret:
            return
        body = manifest.secret(self._prefix, variables)
        try:
            self._api.create("secrets", body)
        except RefusedError as error:
            if not error.exists:
                raise
            self._api.replace("secrets", body)
        self._given_secret = variables

    # --- why runs wait -------------------------------------------------------------------------------------------

    def _explained(self, name: str, seen: Seen, without_pod: bool) -> Seen:
        """Return `seen` with the events of a run whose pod can't be made for long, or was deleted."""
        if seen.status is JobStatus.LOST and seen.reason == states.POD_DELETED:
            return Seen(seen.status, self._event_of(name, "Preempted") or seen.reason, ran=seen.ran)
        if seen.status is not JobStatus.PENDING or seen.ran or self._lasting(name) < states.SAID_AFTER:
            return seen
        if without_pod and (why := self._event_of(name, _WAITS)):
            seen = Seen(seen.status, f"Kubernetes can't create its pod: {why}", ran=False)
        return seen

    def _forget_events(self) -> None:
        """Forget events before a look. Why a run ended is asked once, so that is read anew; why one waits, often."""
        read_at, events = self._events.pop(_WAITS, (float("-inf"), []))
        self._events = {_WAITS: (read_at, events)} if time.monotonic() - read_at < _EVENTS_EVERY else {}

    def _event_of(self, name: str, reason: str) -> str:
        """Return the newest event with this reason of a run's Job or pods; empty if there is none, or it is secret."""
        job = self._name(name)
        if reason not in self._events:
            try:
                events = self._api.list("events", fields=f"reason={reason}")
            except (RefusedError, ClusterSilentError):
                events = []
            self._events[reason] = time.monotonic(), events
        _, events = self._events[reason]
        texts = [e.get("message") or "" for e in events if e["involvedObject"].get("name", "").startswith(job)]
        return clean_text(f"{reason}: {' '.join(texts[-1].split())[:300]}") if texts else ""


def _run_name(thing: Mapping[str, Any]) -> str:
    metadata = thing["metadata"]
    return str((metadata.get("annotations") or {}).get(manifest.NAME) or metadata["name"])
