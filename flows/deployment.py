"""A search as a Prefect deployment: its parameters, its schedule, and what happens when two runs overlap."""

from typing import Any, cast

from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.objects import ConcurrencyLimitConfig, ConcurrencyLimitStrategy
from prefect.client.schemas.schedules import SCHEDULE_TYPES
from prefect.deployments.runner import RunnerDeployment
from prefect.types.entrypoint import EntrypointType

from nasflow.config.search import SearchConfig
from nasflow.config.secrets import written_out
from nasflow.errors import ConfigError
from nasflow.study.store import parse_url

from .search_flow import search

_STRATEGIES = {"wait": ConcurrencyLimitStrategy.ENQUEUE, "skip": ConcurrencyLimitStrategy.CANCEL_NEW}


def config_parameter(config: SearchConfig) -> dict[str, Any]:
    """The config as a parameter of a deployment, with paths that hold in any working folder.

    It is complete: Prefect's form tells the kind of a section by how many of its keys are there.

    Raises:
        ConfigError: a password stands in it, which Prefect would keep and show.
    """
    if keys := written_out(config):
        raise ConfigError(
            f"{keys[0]}: Prefect would keep and show the text of a secret; write {{env: NAME}} or "
            "{prefect_block: NAME} in its place"
        )
    url = parse_url(config.store)
    if url.password or "password" in url.query:
        raise ConfigError(
            "store: Prefect would keep and show its password; leave it out of the URL, and give it to the worker as "
            "PGPASSWORD or in ~/.pgpass"
        )
    values: dict[str, Any] = config.model_dump(mode="json")
    store = f"sqlite:///{url.database}" if url.get_backend_name() == "sqlite" else config.store
    return {**values, "store": store, "work_dir": str(config.work_dir), "base_dir": str(config.base_dir)}


def search_deployment(
    config: SearchConfig, name: str | None, schedule: SCHEDULE_TYPES | None, overlap: str, pool: str | None = None
) -> RunnerDeployment:
    """The deployment of a search, of which one run works at a time.

    Its flow is named by its module, so whoever runs it needs nasflow, but fetches no code.

    Args:
        config: what every run is given, unless who starts it says otherwise.
        name: of the deployment; by default the study's.
        schedule: when it runs by itself.
        overlap: `wait`: a run that is due while another one works waits for its end; `skip`: it is cancelled.
        pool: of the workers; None where there are none.

    Raises:
        ConfigError: a password stands in the config.
    """
    deployment = search.to_deployment(
        name=name or config.name,
        parameters={"config": config_parameter(config)},
        schedules=[] if schedule is None else [DeploymentScheduleCreate(schedule=schedule, active=True)],
        concurrency_limit=ConcurrencyLimitConfig(limit=1, collision_strategy=_STRATEGIES[overlap]),
        work_pool_name=pool,
        tags=[f"strategy:{config.strategy.kind}"],
        entrypoint_type=EntrypointType.MODULE_PATH,
        _sync=True,  # type: ignore[call-arg]  # of Prefect's decorator, which mypy does not see through
    )
    return cast(RunnerDeployment, deployment)
