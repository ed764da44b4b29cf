"""The automations of `nasflow setup`. Each is created once or updated, unless someone has switched it off."""

from datetime import timedelta
from typing import TYPE_CHECKING

from nasflow.errors import UserError

from .server_objects import Done, Made

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

_MISSED = 3  # heartbeats; with fewer, a slow network would look like a dead search


def wanted_automations(
    client: "SyncPrefectClient", within: timedelta, notify_best: str | None, pause_without_gain: int | None
) -> list["AutomationCore"]:
    """Return the automations that the server should have.

    Args:
        client: client of the server.
        within: time without a heartbeat after which a search counts as dead.
        notify_best: notification block for new bests, as `type/name`; None for no such automation.
        pause_without_gain: number of rounds without gain after which a search is paused; None for no such automation.

    Raises:
        UserError: there is no such block.
    """
    from ...server.automations import best_notification, no_gain_pause, zombie_automation  # noqa: PLC0415 - slow

    return [
        zombie_automation(within),
        *([] if notify_best is None else [best_notification(_block_id(client, notify_best))]),
        *([] if pause_without_gain is None else [no_gain_pause(pause_without_gain)]),
    ]


def ensure_automation(client: "SyncPrefectClient", wanted: "AutomationCore") -> Made:
    """Create or update an automation on the server and remove duplicates, unless someone has switched it off."""
    present = client.read_automations_by_name(wanted.name)
    if not present:
        client.create_automation(wanted)
        return Made("automation", wanted.name, Done.CREATED, wanted.description)
    first, *others = present
    for other in others:  # two setups at the same time may both create it
        client.request("DELETE", "/automations/{id}", path_params={"id": other.id})
    if not first.enabled:
        return Made("automation", wanted.name, Done.LEFT, "someone has switched it off")
    if _essence(first) == _essence(wanted):
        return Made("automation", wanted.name, Done.FOUND, wanted.description)
    client.update_automation(first.id, wanted)
    return Made("automation", wanted.name, Done.CHANGED, wanted.description)


def patience() -> timedelta:
    """Return the time without a heartbeat after which a search counts as dead. Raises UserError if none are sent."""
    from prefect.settings import get_current_settings  # noqa: PLC0415 - slow

    frequency = get_current_settings().flows.heartbeat_frequency
    if frequency is None:
        raise UserError("Prefect's heartbeats are switched off: unset PREFECT_FLOWS_HEARTBEAT_FREQUENCY or set it")
    return timedelta(seconds=_MISSED * frequency)


def _block_id(client: "SyncPrefectClient", block: str) -> "UUID":
    from prefect.exceptions import ObjectNotFound  # noqa: PLC0415 - slow

    kind, _, name = block.partition("/")
    try:
        return client.read_block_document_by_name(name or "-", kind).id
    except ObjectNotFound:
        raise UserError(
            f"--notify-best: Prefect has no notification block '{block}'; create it in the UI under Blocks and name it "
            "as type/name, such as slack-webhook/team"
        ) from None


def _essence(automation: "AutomationCore") -> dict[str, object]:
    """Return what an automation does, without the fields that a server adds."""
    return automation.model_dump(include={"trigger", "actions", "description"})  # not as JSON: sets have no order
