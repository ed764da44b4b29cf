"""Automations for a Prefect server: its reactions to nasflow's events (docs/prefect-ui.md)."""

from datetime import timedelta
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ChangeFlowRunState, SendNotification
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture
from prefect.events.schemas.events import ResourceSpecification

from ..ui.trial_events import BEST, ROUND_ENDED, WITHOUT_GAIN

ZOMBIES = "nasflow: searches without heartbeat have crashed"
"""Name of the automation that keeps a killed search from staying Running."""


def best_notification(block_document_id: UUID) -> AutomationCore:
    """Return an automation that sends a notification of every trial that is better than all before it.

    Args:
        block_document_id: id of a notification block (Slack, mail, webhook, ...).
    """
    return AutomationCore(
        name="nasflow: tell of a new best",
        description="Sends a notification when a trial is better than all before it.",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "nasflow.trial.*"}),
            expect={BEST},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            SendNotification(
                block_document_id=block_document_id,
                subject="{{ event.payload.study }}: {{ event.payload.objective }} {{ event.payload.value }}",
                body="Trial {{ event.payload.trial }} of round {{ event.payload.round }} is the best so far.\n"
                "{{ event.payload.architecture }}\n"
                "{{ event.payload.metrics }}",
            )
        ],
    )


def no_gain_pause(rounds: int) -> AutomationCore:
    """Return an automation that pauses a search after `rounds` consecutive rounds without a new best.

    A resumed search is paused again only after the same number of rounds without gain that follow a new best.
    """
    return AutomationCore(
        name="nasflow: pause without gain",
        description=f"Pauses a search after {rounds} consecutive rounds without a new best.",
        trigger=EventTrigger(
            match=ResourceSpecification({"prefect.resource.id": "nasflow.round.*", WITHOUT_GAIN: str(rounds)}),
            expect={ROUND_ENDED},
            posture=Posture.Reactive,
            threshold=1,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.PAUSED, name="Paused", message=f"{rounds} consecutive rounds without a new best"
            )
        ],
    )


def zombie_automation(within: timedelta) -> AutomationCore:
    """Return an automation that sets a flow run of nasflow to CRASHED if no event follows a heartbeat for `within`.

    Prefect's documentation has this automation for all flows ("Detect and respond to zombie flows"). Prefect Cloud has
    it built in; the open-source server does not.
    """
    heartbeat = "prefect.flow-run.heartbeat"
    ends = ("Completed", "Failed", "Cancelled", "Crashed", "Paused", "Suspended", "Scheduled", "AwaitingRetry")
    return AutomationCore(
        name=ZOMBIES,
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
