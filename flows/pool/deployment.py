"""What jobs need on a Prefect server: their deployment, and the automation that notices flow runs that died."""

import logging
from datetime import timedelta
from importlib.metadata import version
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.deployments.runner import DeploymentApplyError
from prefect.exceptions import ObjectNotFound
from prefect.types.entrypoint import EntrypointType

from ..server.automations import ZOMBIES, zombie_automation
from ..ui.heartbeats import heartbeat_frequency
from .job_flow import FLOW, job

_LOG = logging.getLogger(__name__)
_MISSED = 3  # heartbeats


def job_deployment_name(pool: str) -> str:
    """Return the name of the deployment of this nasflow's jobs on a work pool."""
    return f"{pool}-{version('nasflow')}"


def find_job_deployment(client: SyncPrefectClient, pool: str) -> UUID | None:
    """Return the id of the deployment of jobs on a work pool; None if it is missing."""
    try:
        return client.read_deployment_by_name(f"{FLOW}/{job_deployment_name(pool)}").id
    except ObjectNotFound:
        return None


def ensure_job_deployment(client: SyncPrefectClient, pool: str) -> UUID:
    """Return the id of the deployment of jobs on a work pool; make it if it is missing.

    There is one for each version of nasflow. Its flow is named by its module, so workers fetch no code.
    """
    if (present := find_job_deployment(client, pool)) is not None:
        return present
    made: Any = job.to_deployment(
        name=job_deployment_name(pool),
        description=f"Jobs of searches with training_service.work_pool '{pool}'. Searches start its runs.",
        work_pool_name=pool,
        version=version("nasflow"),
        entrypoint_type=EntrypointType.MODULE_PATH,
        _sync=True,  # type: ignore[call-arg]  # added by Prefect's decorator, unknown to mypy
    )
    try:
        id: UUID = made.apply(_sync=True)
    except DeploymentApplyError as error:
        raise error.__cause__ or error from None
    return id


def ensure_zombie_automation(client: SyncPrefectClient) -> None:
    """Make the automation of `nasflow setup` that sets dead flow runs to CRASHED, unless there is one of its name."""
    frequency = heartbeat_frequency()
    if frequency is None or client.read_automations_by_name(ZOMBIES):
        return
    try:
        client.create_automation(zombie_automation(timedelta(seconds=_MISSED * frequency)))
    except httpx.HTTPStatusError as error:
        _LOG.warning("the automation '%s' can't be made: %s", ZOMBIES, error)
