"""The recover flow: resumes dead searches, on a schedule in Prefect."""

from datetime import timedelta
from typing import Annotated

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from nasflow.config.secret.secrets import SecretLocation
from nasflow.errors import NasflowError
from nasflow.report.text import markdown_cell

from .recovery.judge import GRACE
from .recovery.resume import recover_all
from .server.flow_calls import with_server
from .server.secrets import store_of_run
from .ui.artifacts import artifact_key, show_markdown


@with_server
@flow(
    name="nas-recover",
    description="Find searches with a dead process, and resume them.",
    flow_run_name="recover dead searches",
    persist_result=False,
)
def recover(
    store: SecretLocation | None = None,
    dry_run: bool = False,
    grace_seconds: Annotated[float, Field(ge=0, le=2**31 - 1, allow_inf_nan=False)] = GRACE.total_seconds(),
    wait: bool = True,
) -> State[int]:
    """Resume the dead searches of a store and wait for their end, each in a separate process.

    The log and a Markdown artifact have a line about each search.

    Args:
        store: SQLAlchemy URL, {env: NAME} or {prefect_block: NAME}; by default NASFLOW_STORE of the environment.
        dry_run: only say what would be done.
        grace_seconds: how long a flow run may take from its start until it holds its study.
        wait: for the end of the searches that this machine resumes; otherwise they go on after this flow run, which
            they can't in a container that ends with it.

    Raises:
        NasflowError: one of them did not end well; the state is FAILED.
    """
    logger = get_run_logger()
    lines: list[str] = []

    def say(line: str) -> None:
        logger.info(line)
        lines.append(line)

    url = store_of_run(store)
    code = recover_all(url, dry_run, timedelta(seconds=grace_seconds), say, wait)
    show_markdown(
        artifact_key("nas", "recover"),
        "\n".join(f"- {markdown_cell(line)}" for line in lines) or "no studies",
        "Searches",
    )
    message = f"{len(lines)} searches checked"
    if code:
        message += ", some dead ones did not end well"
        return Failed(message=message, data=NasflowError(f"{message}: the log of the flow run says why"))
    return Completed(message=message, data=code)
