"""`nasflow setup`: prepares a Prefect server for searches: work pool, limit, automation, secrets."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from nasflow.config.search import SearchConfig

from ...server.client import prefect_client, set_up_prefect
from ...server.errors import api_url, refuse_no_server
from .automations import ensure_automation, patience, wanted_automations
from .jobs import ensure_jobs
from .pool import ensure_pool, searches_at_once
from .secrets import ensure_secret, secret_names, values_wanted
from .server_objects import Made


def set_up_server(
    config: SearchConfig | None,
    pool: str,
    *,
    slots: int | None = None,
    secrets: Sequence[str] = (),
    notify_best: str | None = None,
    pause_without_gain: int | None = None,
    verbose: bool = False,
) -> list[Made]:
    """Create or update what searches need on the Prefect server in use. Returns each object and what was done to it.

    Args:
        config: names secret blocks to create, and says how many slots a search takes.
        pool: name of the work pool.
        slots: number of device slots that all searches of the pool may use together; None keeps its limit.
        secrets: names of more secret blocks, or of the environment variables with their values.
        notify_best: notification block for new bests, as `type/name`; None for no new automation.
        pause_without_gain: number of rounds without gain after which a search is paused; None for no new automation.
        verbose: show Prefect's own log.

    Raises:
        UserError: no server is configured, it can't be used, heartbeats are switched off, a secret has no value, there
            are too few slots for a search, or there is no such notification block.
    """
    set_up_prefect(verbose)
    refuse_no_server()
    within = patience()
    limit = None if slots is None else searches_at_once(slots, config)
    with prefect_client() as client:
        automations = wanted_automations(client, within, notify_best, pause_without_gain)
        values = values_wanted(client, secret_names(secrets, config))  # asked for before anything is changed
        return [
            ensure_pool(client, pool, limit),
            *(ensure_automation(client, automation) for automation in automations),
            *(ensure_secret(client, name, value) for name, value in values.items()),
            *ensure_jobs(client, config),
        ]


def setup_table(made: Sequence[Made]) -> Table:
    """Return a table with one row per object."""
    table = Table("what", "name", "", "note", title=f"set up: {api_url()}")
    for thing in made:
        table.add_row(thing.what, thing.name, thing.done, thing.note)
    return table


def setup_hints(pool: str) -> list[str]:
    """Return the steps that are left to the user."""
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    frequency = get_current_settings().flows.heartbeat_frequency
    return [
        f"run deployed searches: prefect worker start --pool {pool}",
        "resume killed searches: nasflow recover, on a schedule",
        f"PREFECT_FLOWS_HEARTBEAT_FREQUENCY ({frequency} s here) must be the same wherever searches run",
    ]


def setup_json(made: Sequence[Made]) -> dict[str, Any]:
    """Return the same for a program."""
    return {"server": api_url(), "made": [asdict(thing) for thing in made]}
