"""`nasflow setup`: what a Prefect server needs for searches: work pool, limit, automation, secrets."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from nasflow.config import SearchConfig
from nasflow.errors import UserError

from .prefect_errors import api_url
from .run_command import prefect_client, set_up_prefect
from .setup_made import Done, Made
from .setup_pool import ensure_pool, searches_at_once
from .setup_secrets import ensure_secret, secret_names, values_wanted

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

AUTOMATION = "nasflow: searches without heartbeat have crashed"
_MISSED = 3  # heartbeats; fewer would take a slow network for a death


def set_up_server(
    config: SearchConfig | None, pool: str, slots: int | None, secrets: Sequence[str], verbose: bool
) -> list[Made]:
    """Make the Prefect server in use have what searches need, once and as it should be; what was made and found.

    Args:
        config: its secrets that are Prefect's blocks are made, too, and it says how many slots a search takes.
        pool: name of the work pool.
        slots: how many device slots the searches of the pool may take together; None leaves its limit as it is.
        secrets: names of more secret blocks, or of the environment variables with their values.

    Raises:
        UserError: no server is configured, it can't be used, heartbeats are switched off, a secret's value is not to be
            had, or there are too few slots for a search.
    """
    set_up_prefect(verbose)
    if api_url() is None:
        raise UserError(
            "no Prefect server is configured: start one with 'prefect server start' and set PREFECT_API_URL, "
            "e.g. to http://127.0.0.1:4200/api"
        )
    within = _patience()
    limit = None if slots is None else searches_at_once(slots, config)
    with prefect_client() as client:
        values = values_wanted(client, secret_names(secrets, config))  # asked for before anything is changed
        return [
            ensure_pool(client, pool, limit),
            ensure_automation(client, zombie_automation(within)),
            *(ensure_secret(client, name, value) for name, value in values.items()),
        ]


def setup_table(made: Sequence[Made]) -> Table:
    """A row a thing."""
    table = Table("what", "name", "", "note", title=f"set up: {api_url()}")
    for thing in made:
        table.add_row(thing.what, escape(thing.name), thing.done, escape(thing.note))
    return table


def setup_hints(pool: str) -> list[str]:
    """What is still to be done by people."""
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    frequency = get_current_settings().flows.heartbeat_frequency
    return [
        f"run what is deployed: prefect worker start --pool {pool}",
        "resume killed searches: nasflow recover, on a schedule",
        f"PREFECT_FLOWS_HEARTBEAT_FREQUENCY ({frequency} s here) must be the same wherever searches run",
    ]


def setup_json(made: Sequence[Made]) -> dict[str, Any]:
    """What was made and found, for a program."""
    return {"server": api_url(), "made": [asdict(thing) for thing in made]}


def zombie_automation(within: timedelta) -> "AutomationCore":
    """Set a flow run of nasflow's to CRASHED when no sign of it has come for `within` after a heartbeat.

    Prefect's documentation has this automation for all flows ("Detect and respond to zombie flows"); Prefect Cloud has
    it built in, the open-source server does not.
    """
    from prefect.client.schemas.objects import StateType  # noqa: PLC0415 - slow
    from prefect.events.actions import ChangeFlowRunState  # noqa: PLC0415 - slow
    from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture  # noqa: PLC0415 - slow
    from prefect.events.schemas.events import ResourceSpecification  # noqa: PLC0415 - slow

    heartbeat = "prefect.flow-run.heartbeat"
    ends = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended", "Scheduled", "AwaitingRetry")
    return AutomationCore(
        name=AUTOMATION,
        description=f"made by 'nasflow setup': after {within.total_seconds():.0f} s without heartbeat",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "prefect.flow-run.*"}),
            match_related=ResourceSpecification({"prefect.resource.role": "flow", "prefect.resource.name": ["nas-*"]}),
            for_each={"prefect.resource.id"},
            after={heartbeat},
            expect={heartbeat, *(f"prefect.flow-run.{end}" for end in ends)},
            posture=Posture.Proactive,
            threshold=1,
            within=within,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED,
                message=f"no heartbeat for {within.total_seconds():.0f} s: its process was killed or hangs",
            )
        ],
    )


def ensure_automation(client: "SyncPrefectClient", wanted: "AutomationCore") -> Made:
    """Make the server have the automation once and as it is wanted, unless someone has switched it off."""
    present = client.read_automations_by_name(wanted.name)
    if not present:
        client.create_automation(wanted)
        return Made("automation", wanted.name, Done.CREATED, wanted.description)
    first, *others = present
    for other in others:  # two setups at a time may both create it
        client.request("DELETE", "/automations/{id}", path_params={"id": other.id})
    if not first.enabled:
        return Made("automation", wanted.name, Done.LEFT, "someone has switched it off")
    if _essence(first) == _essence(wanted):
        return Made("automation", wanted.name, Done.FOUND, wanted.description)
    client.update_automation(first.id, wanted)
    return Made("automation", wanted.name, Done.CHANGED, wanted.description)


def _patience() -> timedelta:
    """After how long without a heartbeat a search is taken for dead."""
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    frequency = get_current_settings().flows.heartbeat_frequency
    if frequency is None:
        raise UserError("Prefect's heartbeats are switched off: unset PREFECT_FLOWS_HEARTBEAT_FREQUENCY or set it")
    return timedelta(seconds=_MISSED * frequency)


def _essence(automation: "AutomationCore") -> dict[str, object]:
    """What an automation does, without what a server adds to it."""
    return automation.model_dump(include={"trigger", "actions", "description"})  # as JSON, its sets have any order
