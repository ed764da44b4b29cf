"""The config of a flow run. A run of a deployment may have its own study or budget."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.context import FlowRunContext

from nasflow.config.code_files import names_files
from nasflow.config.search import Budget, SearchConfig
from nasflow.config.secret.secrets import reveal
from nasflow.errors import ConfigError
from nasflow.recurring import config_of_run

from .server.secrets import refuse_recorded_secrets, use_prefect_blocks

_SQLITE_HERE = re.compile(r"sqlite(\+\w+)?:///(?!/)")
"""Begins the URL of a SQLite file with a relative path."""


def deployed_run() -> FlowRun | None:
    """Return the calling flow run if it is one of a deployment, None otherwise.

    A worker starts it in a temporary folder, which is removed at its end.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    return None if run is None or run.deployment_id is None else run


def config_of_this_run(config: SearchConfig, budget: Budget | None) -> SearchConfig:
    """Return the config of the calling flow run. It is the same whenever Prefect runs that flow run again.

    A run with a dated study is renamed to the study's name.

    Args:
        config: the flow run's parameter.
        budget: the keys that are set in it replace those of the config's budget.

    Raises:
        ConfigError: Prefect has recorded the text of a secret with the flow run, a worker's run has relative paths, or
            there is no such variable or block as its store names.
    """
    use_prefect_blocks()
    refuse_recorded_secrets(config)
    run = deployed_run()
    if run is not None:
        _refuse_relative_paths(config, run.parameters.get("config"))
    if budget is not None:
        merged = Budget.model_validate({**config.budget.model_dump(), **budget.model_dump(exclude_unset=True)})
        config = config.model_copy(update={"budget": merged})
    if run is None:
        return config
    return _with_a_base_dir(_own_config(config, run))


def _own_config(config: SearchConfig, run: FlowRun) -> SearchConfig:
    """Return the config with the study of a deployment's run, which gets the name of that study."""
    if config.recurring is None:
        return config
    own = config_of_run(config, str(run.id), run.expected_start_time or datetime.now(UTC))
    if run.name != own.name:
        with get_client(sync_client=True) as client:
            client.update_flow_run(run.id, name=own.name)
    how = f", begun with {len(own.begin_with)} architectures" if own.begin_with else ""
    get_run_logger().info(
        "recurring search (%s): this run works on study '%s'%s", config.recurring.study, own.name, how
    )
    return own


def _refuse_relative_paths(config: SearchConfig, given: Any) -> None:
    """Raise ConfigError if a config, as `given` to the run of a deployment, has paths in the folder of that run."""
    if not isinstance(given, dict):
        return
    places = ("work_dir", "base_dir") if names_files(config) else ("work_dir",)
    relative = [key for key in places if not Path(str(given.get(key) or "")).expanduser().is_absolute()]
    store = given.get("store")
    if store is None or _SQLITE_HERE.match(store if isinstance(store, str) else reveal(config.store, "store")):
        relative.insert(0, "store")
    if relative:
        raise ConfigError(
            f"config: {' and '.join(relative)} would be in the temporary folder in which a worker runs this, and be "
            "removed with it; give absolute paths, as 'nasflow deploy' writes them into the deployment"
        )


def _with_a_base_dir(config: SearchConfig) -> SearchConfig:
    """Replace a `base_dir` that this machine does not have, such as the deployer's, if all code is in modules."""
    if config.base_dir.is_dir() or names_files(config):
        return config
    config.study_dir.mkdir(parents=True, exist_ok=True)
    return config.model_copy(update={"base_dir": config.study_dir})
