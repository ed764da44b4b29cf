"""Runs jobs on the workers of a Prefect work pool: each is a flow run of nasflow's own job deployment."""

import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterName,
    FlowRunFilterState,
    FlowRunFilterStateType,
    FlowRunFilterTags,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Cancelling
from prefect.utilities.urls import url_for

from nasflow.config.job_secrets import NO_SECRETS, JobSecrets
from nasflow.config.services.prefect import PrefectServiceConfig
from nasflow.config.services.storage import ObjectStoreConfig
from nasflow.errors import ServiceError
from nasflow.training_service.cluster.base import ClusterService, ClusterSilentError
from nasflow.training_service.cluster.runs import Run, name_prefix
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.local.service import RUNNER
from nasflow.training_service.local.slots import job_environment

from ..server.errors import refusal
from .checks import check_pool, taker_is_gone, why_waiting
from .deployment import ensure_job_deployment, ensure_zombie_automation
from .secret_blocks import SecretBlocks
from .seen import seen

_LOG = logging.getLogger(__name__)

_ANSWERS_WITHIN = 20.0  # seconds
_RETRIES = 2  # of requests; a busy server answers with 503
_PAGE = 200  # the most that Prefect gives at once
_WAITS_LONG = 60.0  # seconds in a state after which the reason is looked for
_STARTS_WITHIN = 1800.0  # seconds from PENDING to RUNNING; images and nodes take minutes
_ENDS_WITHIN = 60.0  # seconds that a worker has to end a flow run that is cancelled
_WAITING = (StateType.SCHEDULED, StateType.PENDING)
_OPEN = [*_WAITING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING]


class PrefectService(ClusterService):
    """Runs each job as a flow run with the run's name as its name and idempotency key; Prefect accepts each key once.

    A flow run that crashes, is cancelled or is deleted in Prefect is LOST: its job continues from its checkpoints in
    another flow run. The flow runs of a cancelled search are cancelled.

    Args:
        config: the work pool, and what each job gets there.
        root: the folder of the study's jobs and checkpoints.
        runner: `module:function` that runs one `job.json` and returns an exit code.
        secrets: which environment variables jobs don't inherit.
    """

    kind = "prefect"
    passes_secrets = True

    def __init__(
        self,
        config: PrefectServiceConfig,
        root: Path,
        runner: str = RUNNER,
        secrets: JobSecrets = NO_SECRETS,
    ):
        super().__init__(
            root, config.max_jobs, config.poll_seconds, config.abandoned_after, runner, storage=config.storage
        )
        self._config = config
        self._withheld = secrets.withheld - secrets.needed  # jobs have the workers' environment
        self._tag = name_prefix(self._root).removesuffix("-")
        self._secret_blocks = SecretBlocks(self._tag)
        self._deployment: UUID | None = None
        self._states: dict[str, tuple[StateType, float]] = {}  # of open flow runs by name, and since when
        self._ids: dict[str, UUID] = {}  # of flow runs by name
        self._said = ""

    def validate(self) -> None:  # noqa: D102
        super().validate()
        check_pool(self._config)

    def prepare(self) -> None:  # noqa: D102
        try:
            with self._api() as client:
                self._deployment = ensure_job_deployment(client, self._config.work_pool)
                ensure_zombie_automation(client)
        except ClusterSilentError as error:  # the deployment is made when the first job is given to the pool
            self._say_silent(error)
        super().prepare()

    def cleanup(self) -> None:  # noqa: D102
        super().cleanup()
        if secret := list(self._secret_environment()):
            with self._api() as client:
                self._secret_blocks.delete(client, secret)

    def _give(self, run: Run) -> None:
        config = self._config
        environment = job_environment(config.cpus_per_job, bool(config.gpus_per_job))
        if (path := self._storage.import_path) is not None:
            environment["PYTHONPATH"] = path
        if not config.gpus_per_job:
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with self._api() as client:
            parameters = {
                "root": self._storage.root,
                "job_id": run.job_id,
                "token": run.token,
                "program": list(self._program(run)),
                "nasflow_version": version("nasflow"),
                "environment": environment,
                "secret_blocks": self._secret_blocks.save(self._secret_environment()),
                "withheld": sorted(self._withheld),
                "pass_env": config.pass_env,
                "python": config.python,
                "scratch": config.storage.scratch if isinstance(config.storage, ObjectStoreConfig) else None,
            }
            self._deployment = self._deployment or ensure_job_deployment(client, config.work_pool)
            try:
                self._create(client, run, parameters)
            except httpx.HTTPStatusError as error:
                if error.response.status_code != httpx.codes.NOT_FOUND:
                    raise
                self._deployment = ensure_job_deployment(client, config.work_pool)  # someone has deleted it
                self._create(client, run, parameters)

    def _create(self, client: SyncPrefectClient, run: Run, parameters: dict[str, Any]) -> None:
        if self._deployment is None:
            raise RuntimeError("there is no deployment")
        client.create_flow_run_from_deployment(
            self._deployment,
            parameters=parameters,
            name=run.name,
            idempotency_key=run.name,
            tags=[self._tag, f"study:{self._root.name}"],
            work_queue_name=self._config.work_queue,
            job_variables=self._config.job_variables,
        )

    def _look(self) -> Mapping[str, Seen]:
        wanted = self._current_runs()
        with self._api() as client:
            runs = self._read(client, state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_OPEN)))
            ended = [name for name in wanted if name not in {run.name for run in runs}]
            if ended:
                runs += self._read(client, name=FlowRunFilterName(any_=ended))
            waits = self._waits(client, runs)
        self._ids = {run.name: run.id for run in runs}
        cancelling = {run.name: self._in_state(run) for run in runs if run.state_type is StateType.CANCELLING}
        for name, seconds in cancelling.items():
            if name in wanted and seconds > _ENDS_WITHIN:  # its worker is gone
                self._records.revoke(wanted[name])
        ends = {name for name in cancelling if name in wanted and wanted[name].ended() is not None}
        return {run.name: seen(run, waits, run.name in ends) for run in runs}

    def _withdraw(self, names: Sequence[str]) -> None:
        with self._api() as client:
            for run in self._read(client, name=FlowRunFilterName(any_=list(names))):
                if run.state_type in _WAITING or self._in_state(run) > _ENDS_WITHIN:
                    client.set_flow_run_state(run.id, Cancelled(message="its search has ended it"), force=True)
                elif run.state_type is StateType.RUNNING:
                    client.set_flow_run_state(run.id, Cancelling(message="its search ends it"), force=True)

    def _where(self, run: Run) -> str:
        return str(url_for("flow-run", self._ids[run.name])) if run.name in self._ids else ""

    def _current_runs(self) -> dict[str, Run]:
        runs = (self._records.run(job_id) for job_id in self._records.taken())
        return {run.name: run for run in runs if run is not None}

    def _read(self, client: SyncPrefectClient, **which: Any) -> list[FlowRun]:
        """Return the flow runs of this root with these fields of a filter."""
        wanted = FlowRunFilter(tags=FlowRunFilterTags(all_=[self._tag]), **which)
        runs: list[FlowRun] = []
        while True:
            page = client.read_flow_runs(
                flow_run_filter=wanted, sort=FlowRunSort.EXPECTED_START_TIME_ASC, limit=_PAGE, offset=len(runs)
            )
            runs += page
            if len(page) < _PAGE:
                return runs

    def _waits(self, client: SyncPrefectClient, runs: Iterable[FlowRun]) -> str:
        """Return why flow runs have been waiting for long; empty if none has. The search's log says it once.

        Flow runs whose worker has not started them, in time or because it is gone, are withdrawn.
        """
        waiting = {run.name: self._in_state(run) for run in runs if run.state_type in _WAITING}
        self._states = {run.name: self._states[run.name] for run in runs if run.name in self._states}
        pending = [run for run in runs if run.state_type is StateType.PENDING and waiting[run.name] > _WAITS_LONG]
        if left := [
            run.name
            for run in pending
            if waiting[run.name] > _STARTS_WITHIN or taker_is_gone(client, self._config.work_pool, run)
        ]:
            self._withdraw(left)
        why = ""
        if any(seconds > _WAITS_LONG for seconds in waiting.values()):
            why = why_waiting(client, self._config)
            if why and why != self._said:
                _LOG.warning("%s; jobs wait", why)
        self._said = why
        return why

    def _in_state(self, run: FlowRun) -> float:
        """Return for how many seconds an open flow run has been seen in its present type of state."""
        kind = run.state_type or StateType.SCHEDULED
        before, since = self._states.get(run.name, (None, 0.0))
        if before is not kind:
            since = time.monotonic()
            self._states[run.name] = (kind, since)
        return time.monotonic() - since

    @contextmanager
    def _api(self) -> Iterator[SyncPrefectClient]:
        try:
            with (
                temporary_settings({PREFECT_CLIENT_MAX_RETRIES: _RETRIES}),
                get_client(httpx_settings={"timeout": _ANSWERS_WITHIN}, sync_client=True) as client,
            ):
                yield client
        except httpx.HTTPStatusError as error:
            code = error.response.status_code
            if error.response.is_server_error or code in (httpx.codes.TOO_MANY_REQUESTS, httpx.codes.UNAUTHORIZED):
                raise ClusterSilentError(f"training_service: Prefect's API answers with status {code}") from error
            raise ServiceError(f"training_service: Prefect refuses such jobs: {refusal(error)}") from error
        except httpx.HTTPError as error:
            raise ClusterSilentError(f"training_service: Prefect's API does not answer: {error!r}") from error
