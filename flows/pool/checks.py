"""Checks whether a work pool can run jobs, and why they wait."""

import difflib
from collections.abc import Mapping
from typing import Any

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, WorkerStatus, WorkPool, WorkQueue
from prefect.exceptions import ObjectNotFound
from prefect.utilities.schema_tools import ValidationError, validate

from nasflow.config.services.prefect import PrefectServiceConfig
from nasflow.errors import ServiceError

from ..server.client import prefect_client
from ..server.errors import api_url

_POOL, _QUEUE, _VARIABLES = (f"training_service.{key}" for key in ("work_pool", "work_queue", "job_variables"))
_SHOWN = 200  # workers


def check_pool(config: PrefectServiceConfig) -> None:
    """Raise ServiceError, in one sentence, if jobs can't run on the work pool."""
    if api_url() is None:
        raise ServiceError(
            "training_service.kind: 'prefect' needs a Prefect server that its workers can reach; start one with "
            "'prefect server start' and set PREFECT_API_URL, e.g. to http://127.0.0.1:4200/api"
        )
    with prefect_client() as client:
        pool = _find_pool(client, config.work_pool)
        if pool.is_push_pool or pool.is_managed_pool:
            raise ServiceError(
                f"{_POOL}: '{pool.name}' is of type {pool.type}, which has no workers; use a pool with workers, such "
                "as one of type process, docker or kubernetes"
            )
        if why := _blocked(pool) or _queue_blocked(client, config):
            raise ServiceError(why)
        _check_variables(config.job_variables, pool)
        if why := _no_worker(client, config.work_pool):
            raise ServiceError(why)


def why_waiting(client: SyncPrefectClient, config: PrefectServiceConfig) -> str:
    """Return in a sentence why flow runs of the pool have been waiting for long; empty if nothing is wrong."""
    try:
        pool = client.read_work_pool(config.work_pool)
        why = _blocked(pool) or _queue_blocked(client, config) or _no_worker(client, config.work_pool)
    except ObjectNotFound:
        return f"{_POOL}: someone has deleted the work pool '{config.work_pool}'"
    if not why and pool.concurrency_limit is not None and (pool.active_slots or 0) >= pool.concurrency_limit:
        why = f"{_POOL}: '{pool.name}' runs as many flow runs as its concurrency limit allows, {pool.concurrency_limit}"
    return why


def _find_pool(client: SyncPrefectClient, name: str) -> WorkPool:
    try:
        return client.read_work_pool(name)
    except ObjectNotFound:
        others = ", ".join(pool.name for pool in client.read_work_pools(limit=10)) or "none"
        raise ServiceError(
            f"{_POOL}: Prefect has no work pool '{name}' (there: {others}); "
            f"'prefect work-pool create {name} --type process' makes one"
        ) from None


def _blocked(pool: WorkPool) -> str:
    if pool.is_paused:
        return f"{_POOL}: '{pool.name}' is paused; 'prefect work-pool resume {pool.name}' lets it run jobs"
    if pool.concurrency_limit == 0:
        return (
            f"{_POOL}: the concurrency limit of '{pool.name}' is 0; "
            f"'prefect work-pool clear-concurrency-limit {pool.name}' removes it"
        )
    return ""


def _queue_blocked(client: SyncPrefectClient, config: PrefectServiceConfig) -> str:
    name, pool = config.work_queue or "default", config.work_pool
    queues = {queue.name: queue for queue in client.read_work_queues(work_pool_name=pool)}
    queue: WorkQueue | None = queues.get(name)
    if queue is None:
        return (
            f"{_QUEUE}: work pool '{pool}' has no queue '{name}' (there: {', '.join(queues)}); "
            f"'prefect work-queue create {name} --pool {pool}' makes one"
        )
    if queue.is_paused:
        return f"{_QUEUE}: '{name}' is paused; 'prefect work-queue resume {name} --pool {pool}' lets it run jobs"
    if queue.concurrency_limit == 0:
        return (
            f"{_QUEUE}: the concurrency limit of '{name}' is 0; "
            f"'prefect work-queue clear-concurrency-limit {name} --pool {pool}' removes it"
        )
    return ""


def _no_worker(client: SyncPrefectClient, pool: str) -> str:
    workers = client.read_workers_for_work_pool(pool, limit=_SHOWN)
    if any(worker.status is WorkerStatus.ONLINE for worker in workers):
        return ""
    return f"{_POOL}: no worker polls '{pool}'; start one where jobs are to run: prefect worker start --pool {pool}"


def taker_is_gone(client: SyncPrefectClient, pool: str, run: FlowRun) -> bool:
    """Whether no worker that polls now did so when a flow run was taken from the pool's queue, as PENDING says."""
    if run.state is None:
        return False
    taken = run.state.timestamp
    workers = client.read_workers_for_work_pool(pool, limit=_SHOWN)
    online = [worker for worker in workers if worker.status is WorkerStatus.ONLINE]
    return not any(worker.created is None or worker.created <= taken for worker in online)


def _check_variables(given: Mapping[str, Any], pool: WorkPool) -> None:
    """Check job variables against the pool's base job template, as the server would for every flow run."""
    schema = pool.base_job_template.get("variables") or {}
    known: Mapping[str, Any] = schema.get("properties") or {}
    if unknown := next((name for name in given if name not in known), None):
        near = difflib.get_close_matches(unknown, known, n=1)
        raise ServiceError(
            f"{_VARIABLES}.{unknown}: work pool '{pool.name}' has no such variable; "
            + (f"did you mean '{near[0]}'?" if near else f"it has: {', '.join(sorted(known)) or 'none'}")
        )
    defaults = {name: about["default"] for name, about in known.items() if "default" in about}
    wanted = {name: value for name, value in defaults.items() if not (isinstance(value, dict) and "$ref" in value)}
    try:
        problems = validate({**wanted, **given}, schema, allow_none_with_default=True)
    except ValidationError as error:
        raise ServiceError(f"{_VARIABLES}: {error}") from error
    for problem in problems:
        key = ".".join(str(step) for step in problem.path)
        if not key or key.partition(".")[0] in given:  # a wrong default is the pool's
            words = (problem.context or [problem])[0].message  # of a value or None: about the value
            raise ServiceError(f"{_VARIABLES}{'.' if key else ''}{key}: {words} (by work pool '{pool.name}')")
