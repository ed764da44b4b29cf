"""Options and helpers that the commands share."""

import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from .console import console, shown_warnings

MOST = 2**31 - 1  # the largest number that every store takes


def a_number(value: float | None) -> float | None:
    """Return an option's value. Raises BadParameter for nan, which no least and no largest value excludes."""
    if value is not None and math.isnan(value):
        raise typer.BadParameter("nan is not a number.")
    return value


StudyName = Annotated[str, typer.Argument(metavar="STUDY", help="The study's name: `name:` in its config.")]
StoreUrl = Annotated[
    str, typer.Option("--store", envvar="NASFLOW_STORE", help="SQLAlchemy URL of the database with the study.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Top = Annotated[int, typer.Option("--top", min=1, max=MOST, help="How many of the best trials.")]

Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Show Prefect's own log.")]
TakeOver = Annotated[
    bool, typer.Option("--take-over", help="Take the study from another controller, which then stops.")
]

KeepServer = Annotated[
    float | None,
    typer.Option(
        min=0.1,
        callback=a_number,
        metavar="MINUTES",
        help="Keep the server for later runs, until so many minutes without a request.",
    ),
]
Grace = Annotated[
    float,
    typer.Option(
        min=0,
        max=MOST,
        callback=a_number,
        help="Seconds a flow run may take from its start until it holds its study.",
    ),
]
OlderThan = Annotated[
    float | None,
    typer.Option(
        min=0,
        max=100_000,
        callback=a_number,
        metavar="DAYS",
        help="Only studies without activity for this long.",
    ),
]
Patience = Annotated[float, typer.Option(min=0, callback=a_number, help="Seconds that a job may wait for a place.")]

DEFAULT_STORE = "sqlite:///nasflow.db"


def store_option(store: str) -> list[str]:
    """Return what a command that is shown needs to find a store, without its password.

    It is empty for the default store and for the environment's, which the command finds by itself.
    """
    from nasflow.config.secret.secret_url import SecretUrl  # noqa: PLC0415 - slow

    return [] if store == (os.environ.get("NASFLOW_STORE") or DEFAULT_STORE) else ["--store", str(SecretUrl(store))]


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


@contextmanager
def own_server(verbose: bool, idle: float | None = None) -> Iterator[None]:
    """Let Prefect's server come up, where one is needed, while the block does what it needs no server for.

    A server that the block did not come to use has ended afterwards.
    """
    from ..server.client import prefect_shows_warnings, set_up_prefect  # noqa: PLC0415 - slow
    from ..server.own_server import end_unused_server, start_own_server  # noqa: PLC0415 - slow

    set_up_prefect(verbose)
    start_own_server(idle)
    try:
        with nullcontext() if prefect_shows_warnings() else shown_warnings():
            yield
    finally:
        end_unused_server()


def load_search(path: Path) -> Any:
    """Load a search config. Raises ConfigError for mistakes in it."""
    from nasflow.config.search import load_config  # noqa: PLC0415

    from ..server.secrets import use_prefect_blocks  # noqa: PLC0415

    use_prefect_blocks()
    return load_config(path)


def exit_with(code: int) -> None:
    """End the command with this exit code, unless it is 0."""
    if code:
        raise typer.Exit(code)
