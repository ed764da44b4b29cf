"""The config of a flow run. A run of a deployment may have its own study or budget."""

from datetime import UTC, datetime

from prefect import get_run_logger
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext

from nasflow.config.search import Budget, SearchConfig
from nasflow.recurring import config_of_run

from .server.secrets import refuse_recorded_secrets, use_prefect_blocks


def config_of_this_run(config: SearchConfig, budget: Budget | None) -> SearchConfig:
    """Return the config of the calling flow run. It is the same whenever Prefect runs that flow run again.

    A run with a dated study is renamed to the study's name.

    Args:
        config: the flow run's parameter.
        budget: replaces the config's budget, unless None.

    Raises:
        ConfigError: Prefect has recorded the text of a secret with the flow run.
    """
    use_prefect_blocks()
    refuse_recorded_secrets(config)
    if budget is not None:
        config = config.model_copy(update={"budget": budget})
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if config.recurring is None or run is None or run.deployment_id is None:
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
