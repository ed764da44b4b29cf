"""A search as a Prefect deployment: its parameters, its schedule, and what happens when two runs overlap."""

from typing import Any, cast
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import SCHEDULE_TYPES
from prefect.deployments.runner import DeploymentApplyError, RunnerDeployment
from prefect.types.entrypoint import EntrypointType

from nasflow.config.search import SearchConfig
from nasflow.config.secret.secret_url import SecretUrl
from nasflow.config.secret.secrets import secrets_of, written_out
from nasflow.errors import ConfigError, UserError
from nasflow.study.database.store_url import parse_url

from .search_flow import search
from .server.errors import refusal

_SCHEDULE = "nasflow"  # the slug by which a deployment's schedule is found when the deployment is made again
_REFUSALS = (httpx.codes.BAD_REQUEST, httpx.codes.CONFLICT, httpx.codes.UNPROCESSABLE_ENTITY)
_STRATEGIES = {"wait": ConcurrencyLimitStrategy.ENQUEUE, "skip": ConcurrencyLimitStrategy.CANCEL_NEW}


def config_parameter(config: SearchConfig) -> dict[str, Any]:
    """Return the config as a parameter of a deployment, with paths that are valid in any working folder.

    All keys are included, because Prefect's form infers the kind of a section from how many of its keys are present.
    Those that follow from others have their defaults, so that they follow from what is changed in the form.

    Raises:
        ConfigError: the config contains a password, which Prefect would store and show.
    """
    if keys := written_out(config):
        key, is_url = keys[0], isinstance(dict(secrets_of(config))[keys[0]], SecretUrl)
        what = "its password" if is_url else "the text of a secret"
        instead = "; or leave it out, and give it to the worker as PGPASSWORD or in ~/.pgpass" if key == "store" else ""
        raise ConfigError(
            f"{key}: Prefect would keep and show {what}; write {{env: NAME}} or {{prefect_block: NAME}} in its "
            f"place{instead}"
        )
    values: dict[str, Any] = config.without_derived().model_dump(mode="json")
    if isinstance(config.store, SecretUrl) and (url := parse_url(config.store)).get_backend_name() == "sqlite":
        values["store"] = f"sqlite:///{url.database}"
    return {**values, "work_dir": str(config.work_dir), "base_dir": str(config.base_dir)}


def search_deployment(
    config: SearchConfig, name: str | None, schedule: SCHEDULE_TYPES | None, overlap: str, pool: str | None = None
) -> RunnerDeployment:
    """Return the deployment of a search, which has one run in progress at a time.

    Its flow is named by its module, so a worker needs nasflow but fetches no code.

    Args:
        config: default parameter of every run.
        name: the deployment's name; by default the study's.
        schedule: when it runs by itself; None for only on demand.
        overlap: a run that is due while another is in progress waits for its end (`wait`) or is cancelled (`skip`).
        pool: the work pool; None if no workers are used.

    Raises:
        ConfigError: the config contains a password.
    """
    deployment = search.to_deployment(
        name=name or config.name,
        parameters={"config": config_parameter(config)},
        schedules=[]
        if schedule is None
        else [DeploymentScheduleCreate(schedule=schedule, active=True, slug=_SCHEDULE)],
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=_STRATEGIES[overlap]),
        work_pool_name=pool,
        tags=[f"strategy:{config.strategy.kind}"],
        entrypoint_type=EntrypointType.MODULE_PATH,
        _sync=True,  # type: ignore[call-arg]  # added by Prefect's decorator, unknown to mypy
    )
    return cast(RunnerDeployment, deployment)


def apply_deployment(client: SyncPrefectClient, deployment: RunnerDeployment) -> None:
    """Create the deployment, or update the one of its name, which then has no schedule but those of `deployment`.

    Raises:
        UserError: the server refuses it.
    """
    made: Any = deployment
    try:
        id: UUID = made.apply(_sync=True)
    except (DeploymentApplyError, httpx.HTTPStatusError) as error:
        cause = error.__cause__ if isinstance(error, DeploymentApplyError) else error
        if not isinstance(cause, httpx.HTTPStatusError) or cause.response.status_code not in _REFUSALS:
            raise
        raise UserError(f"Prefect refuses the deployment '{deployment.full_name}': {refusal(cause)}") from error
    for schedule in client.read_deployment_schedules(id):
        if schedule.slug not in {wanted.slug for wanted in deployment.schedules or []}:
            client.delete_deployment_schedule(id, schedule.id)
