"""`nasflow serve`: deploys a search and starts its runs from this process, without a worker."""

from nasflow.config.search import SearchConfig

from ...server.client import prefect_client, set_up_prefect
from ...server.errors import refuse_no_server
from ..console import console
from .command import described
from .schedules import When


def serve_search(config: SearchConfig, name: str | None, when: When, overlap: str) -> None:
    """Serve the deployment until this process ends. Its schedule then pauses until it is served again.

    Raises:
        UserError: an option or the config can't be used, the server refuses it, or is unavailable.
    """
    set_up_prefect(verbose=True)
    from prefect import serve  # noqa: PLC0415 - slow

    from ...deployment import apply_deployment, search_deployment  # noqa: PLC0415 - slow

    schedule = when.schedule()
    deployment = search_deployment(config, name, schedule, overlap)
    refuse_no_server()
    with prefect_client() as client:
        apply_deployment(client, deployment)
    text = f"deployment '{deployment.full_name}'{described(config, schedule, overlap)}; Ctrl-C ends it"
    console().print(text, soft_wrap=True)
    serve(deployment)
