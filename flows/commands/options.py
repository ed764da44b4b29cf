"""Options and helpers that the commands share."""

import json
import sys
from typing import Annotated, Any

import typer

from .console import console

MOST = 2**31 - 1  # the largest number that every store takes

StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="The study's name: `name:` in its config.")]
StoreUrl = Annotated[
    str, typer.Option("--store", envvar="NASFLOW_STORE", help="SQLAlchemy URL of the database with the study.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Top = Annotated[int, typer.Option("--top", min=1, max=MOST, help="How many of the best trials.")]

DEFAULT_STORE = "sqlite:///nasflow.db"


def load_study(store: Any, name: str) -> Any:
    """Load a study. Raises StudyError if there is none of that name."""
    from nasflow.study.study import Study  # noqa: PLC0415 - slow

    from ..server.secrets import use_prefect_blocks  # noqa: PLC0415 - slow

    use_prefect_blocks()
    return Study.load(store, name)


def print_out(thing: Any) -> None:
    """Print lists and dicts as JSON, anything else as it is."""
    if isinstance(thing, dict | list):
        sys.stdout.write(json.dumps(thing, indent=2, default=str) + "\n")
    else:
        console().print(thing)
