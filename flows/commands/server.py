"""`nasflow server`: a Prefect server that stays, so that searches need not start one."""

import math
import signal
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nasflow.errors import UserError

from ..server.client import set_up_prefect
from ..server.in_use import URL
from ..server.own_server import refuse_named_server, start_kept_server
from .console import console
from .options import AsJson, print_out

if TYPE_CHECKING:
    from ..server.kept_servers import KeptServer

_ENDS_WITHIN = 15.0  # seconds, after which it is killed

server = typer.Typer(help="A Prefect server that stays, which the searches of this user find.", no_args_is_help=True)


@server.command()
def start(
    idle: Annotated[
        float | None,
        typer.Option(min=0.1, metavar="MINUTES", help="End it after so long without a request; by default never."),
    ] = None,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Its port on this machine; by default any free one.")] = 0,
) -> None:
    """Start a server that stays, unless there is one. It has Prefect's UI, and `prefect server start`'s database."""
    from ..server.kept_servers import kept_server  # noqa: PLC0415 - slow

    set_up_prefect(verbose=True)
    refuse_named_server()
    running = kept_server()
    url = running.url if running else _start(math.inf if idle is None else idle, port)
    say = console()
    say.print(f"Prefect's server runs at {url.removesuffix('/api')}; searches of yours use it", soft_wrap=True)
    say.print(f"other programs: export {URL}={url}", soft_wrap=True)


@server.command()
def stop(
    every: Annotated[
        bool, typer.Option("--all", help="Those of other databases and versions of Prefect, too.")
    ] = False,
) -> None:
    """Stop the server. A search that uses it ends, and goes on when it is run again."""
    from ..server.kept_servers import kept_server, kept_servers, remove_record  # noqa: PLC0415 - slow

    found = kept_servers() if every else [one for one in [kept_server()] if one is not None]
    for one in found:
        one.process.send(signal.SIGTERM)
        deadline = time.monotonic() + _ENDS_WITHIN
        while one.process.alive():
            if time.monotonic() > deadline:
                one.process.send(signal.SIGKILL)
            time.sleep(0.05)
        remove_record(one)
        console().print(f"stopped Prefect's server on port {one.port}")
    if not found:
        console().print("no server runs that 'nasflow server start' or 'nasflow run --keep-server' started")


@server.command()
def status(as_json: AsJson = False) -> None:
    """Show which servers run. Exit code 1 if there is none."""
    from ..server.kept_servers import kept_servers  # noqa: PLC0415 - slow

    rows = [_row(one) for one in kept_servers()]
    if as_json:
        print_out(rows)
    for row in [] if as_json else rows:
        until = (
            "until it is stopped" if row["idle_minutes"] is None else f"{row['idle_minutes']:g} min after its last use"
        )
        state = f"runs {until}" if row["answers"] else "does not answer; 'nasflow server stop --all' ends it"
        where = f"{row['url']} (Prefect {row['prefect']}, process {row['pid']}, {row['database']})"
        console().print(f"{where} {state}", soft_wrap=True)
    if not rows:
        if not as_json:
            console().print("no server runs; 'nasflow server start' starts one")
        raise typer.Exit(1)


def _row(one: "KeptServer") -> dict[str, Any]:
    shown = one.model_dump(include={"prefect", "database", "idle_minutes"})
    return {"url": one.url, "pid": one.process.pid, "answers": one.answers(), **shown}


def _start(idle: float, port: int) -> str:
    """Start a server and return its URL, or that of one that another command has started meanwhile."""
    from ..server.kept_servers import kept_server  # noqa: PLC0415 - slow

    started = start_kept_server(idle, port)
    try:
        ready = started.wait()
    finally:
        if not started.kept:
            started.end()
    if started.kept:
        return started.url
    other = kept_server() if ready else None
    if other is None:
        raise UserError("Prefect's settings name a server, which searches use: see 'prefect config view'")
    return other.url
