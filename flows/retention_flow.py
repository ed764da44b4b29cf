"""The retention flow: removes old studies and their checkpoints, on a schedule in Prefect."""

from pathlib import Path
from typing import Annotated

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from nasflow.config.secret.secrets import SecretLocation
from nasflow.errors import ConfigError, NasflowError
from nasflow.report.text import markdown_cell

from .purge import Purge, purge_studies
from .run_config import deployed_run
from .server.flow_calls import with_server
from .server.secrets import store_of_run
from .ui.artifacts import artifact_key, show_markdown


@with_server
@flow(
    name="nas-retention",
    description="Remove old studies with their checkpoints.",
    flow_run_name="remove old studies: {studies}",
    persist_result=False,
)
def retention(
    studies: str,
    *,
    older_than_days: Annotated[float, Field(ge=0, le=100_000, allow_inf_nan=False)] | None = None,
    keep: Annotated[int, Field(ge=0)] | None = None,
    export_best: Path | None = None,
    dry_run: bool = False,
    store: SecretLocation | None = None,
) -> State[list[str]]:
    """Remove old studies with their folders and checkpoints, but never one that a controller holds.

    The log and a Markdown artifact have a line about each study.

    Args:
        studies: pattern of study names, as in a shell: nightly-*
        older_than_days: remove only studies without activity for this many days
        keep: keep this many of the newest, whatever their age
        export_best: first export the best model of each study into a folder of its name in this folder; an absolute
            path in runs of a deployment
        dry_run: only say what would be removed
        store: SQLAlchemy URL, {env: NAME} or {prefect_block: NAME}; by default NASFLOW_STORE of the environment

    Raises:
        ConfigError: export_best is relative in the run of a deployment; or Prefect has recorded a password in store.
        NasflowError: a study could not be removed; the state is FAILED.
    """
    if export_best is not None and not export_best.is_absolute() and deployed_run() is not None:
        raise ConfigError(
            f"export_best: {export_best} would be in the temporary folder in which a worker runs this, and be removed "
            "with it; give an absolute path"
        )
    logger = get_run_logger()
    lines: list[str] = []

    def say(line: str) -> None:
        logger.info(line)
        lines.append(line)

    url = store_of_run(store)
    all_gone = purge_studies(url, Purge(studies, older_than_days, keep, export_best, dry_run), say)
    show_markdown(
        artifact_key("nas", "retention"),
        "\n".join(f"- {markdown_cell(line)}" for line in lines) or "no old studies",
        "Old studies",
    )
    message = f"{len(lines)} old studies"
    if not all_gone:
        message += ", of which some could not be removed"
        return Failed(message=message, data=NasflowError(f"{message}: the log of the flow run says why"))
    return Completed(message=message, data=lines)
