"""`nasflow setup`: what a Prefect server needs so that it finds searches dead whose process was killed."""

from datetime import timedelta
from typing import TYPE_CHECKING

from nasflow.errors import UserError

from .console import console
from .run_command import prefect_client, set_up_prefect

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.events.schemas.automations import AutomationCore

AUTOMATION = "nasflow: searches without heartbeat have crashed"
_MISSED = 3  # heartbeats; fewer would take a slow network for a death


def set_up_server(verbose: bool) -> None:
    """Create the automation on the Prefect server in use, or bring it up to date, and say what was done.

    Raises:
        UserError: no server is configured, it can't be reached, or heartbeats are switched off.
    """
    set_up_prefect(verbose)
    from prefect.settings import PREFECT_API_URL, get_current_settings  # noqa: PLC0415 - slow

    url = PREFECT_API_URL.value()
    if not url:
        raise UserError(
            "no Prefect server is configured: start one with 'prefect server start' and set PREFECT_API_URL, "
            "e.g. to http://127.0.0.1:4200/api"
        )
    frequency = get_current_settings().flows.heartbeat_frequency
    if frequency is None:
        raise UserError("Prefect's heartbeats are switched off: unset PREFECT_FLOWS_HEARTBEAT_FREQUENCY or set it")
    within = timedelta(seconds=_MISSED * frequency)
    with prefect_client() as client:
        done = _ensure(client, zombie_automation(within))
    console().print(
        f"{url}: {done}: '{AUTOMATION}'\n"
        f"A search whose process is killed is Crashed {within.total_seconds():.0f} s after its last heartbeat, if it "
        f"sends one every {frequency} s\n(PREFECT_FLOWS_HEARTBEAT_FREQUENCY, 30 or more, must be there what it is "
        "here). Call 'nasflow recover' on a schedule to resume dead searches.",
        soft_wrap=True,
        markup=False,
    )


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


def _ensure(client: "SyncPrefectClient", wanted: "AutomationCore") -> str:
    """Make the server have the automation once and as it is wanted; what was done."""
    present = client.read_automations_by_name(wanted.name)
    if not present:
        client.create_automation(wanted)
        return "created the automation"
    first, *others = present
    for other in others:  # two setups at a time may both create it
        client.request("DELETE", "/automations/{id}", path_params={"id": other.id})
    if not first.enabled:
        return "left as it is, for someone has switched it off, the automation"
    if _essence(first) == _essence(wanted):
        return "there already is the automation"
    client.update_automation(first.id, wanted)
    return "brought up to date the automation"


def _essence(automation: "AutomationCore") -> dict[str, object]:
    """What an automation does, without what a server adds to it."""
    return automation.model_dump(include={"trigger", "actions", "description"})  # as JSON, its sets have any order
