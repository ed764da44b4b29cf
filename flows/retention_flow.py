"""The retention flow: what a schedule in Prefect calls so that old studies and their checkpoints go."""

import os
from pathlib import Path
from typing import Annotated

from prefect import flow, get_run_logger
from prefect.client.schemas.objects import State
from prefect.states import Completed, Failed
from pydantic import Field

from .purge import Purge, purge_studies
from .ui.artifacts import artifact_key, show_markdown

DEFAULT_STORE = "sqlite:///nasflow.db"


@flow(
    name="nas-retention",
    description="Remove old studies with their checkpoints.",
    flow_run_name="remove old studies: {studies}",
    persist_result=False,
)
def retention(
    studies: str,
    *,
    older_than_days: Annotated[float, Field(ge=0)] | None = None,
    keep: Annotated[int, Field(ge=0)] | None = None,
    export_best: Path | None = None,
    dry_run: bool = False,
    store: str | None = None,
) -> State[list[str]]:
    """Remove old studies with their folders and checkpoints, but never one that a controller holds.

    FAILED if one that should go could not be removed. A line about each is in the log and in a Markdown artifact.

    Args:
        studies: pattern of their names, as in a shell: nightly-*
        older_than_days: nothing has happened in them for so many days
        keep: so many of the newest stay, whatever their age
        export_best: the best model of each is exported into a folder of its name in this one before it is removed
        dry_run: only say what would be removed
        store: SQLAlchemy URL; none: that in the environment's NASFLOW_STORE, which shows no password to anyone
    """
    logger = get_run_logger()
    lines: list[str] = []

    def say(line: str) -> None:
        logger.info(line)
        lines.append(line)

    url = store or os.environ.get("NASFLOW_STORE", DEFAULT_STORE)
    all_gone = purge_studies(url, Purge(studies, older_than_days, keep, export_best, dry_run), say)
    show_markdown(
        artifact_key("nas", "retention"), "\n".join(f"- {line}" for line in lines) or "no old studies", "Old studies"
    )
    message = f"{len(lines)} old studies" + ("" if all_gone else ", of which some could not be removed")
    return (Completed if all_gone else Failed)(message=message, data=lines)
