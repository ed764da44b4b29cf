"""The retention flow: removes old studies and their checkpoints, on a schedule in Prefect."""

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

    The state is FAILED if a study could not be removed. The log and a Markdown artifact have a line about each study.

    Args:
        studies: pattern of study names, as in a shell: nightly-*
        older_than_days: remove only studies without activity for this many days
        keep: keep this many of the newest, whatever their age
        export_best: first export the best model of each study into a folder of its name in this folder
        dry_run: only say what would be removed
        store: SQLAlchemy URL; by default NASFLOW_STORE of the environment, which keeps a password out of Prefect
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
