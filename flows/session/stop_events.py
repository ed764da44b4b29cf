"""Events by which programs and automations end one trial of a running search."""

from datetime import UTC, datetime
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.events.filters import EventFilter, EventNameFilter, EventOccurredFilter, EventResourceFilter
from prefect.events.schemas.events import ReceivedEvent

STOP = "nasflow.trial.stop"
"""The event's name; its resource is the trial's, as in all events about it: `nasflow.trial.<study>.<number>`."""


_MOST = 50  # events of an answer; Prefect refuses more
_DIGITS = 9  # of the largest number of a trial; not every store takes longer ones


class StopEvents:
    """Finds the trials of a study that events ask to end, from now on.

    Args:
        study: the study's name.
    """

    def __init__(self, study: str):
        self._prefix, self._since = f"nasflow.trial.{study}.", datetime.now(UTC)
        self._taken: set[UUID] = set()

    def take(self, client: SyncPrefectClient) -> list[int]:
        """Return the numbers of the trials that new events ask to end. Raises httpx.HTTPError."""
        found: list[ReceivedEvent] = []
        until = datetime.now(UTC)
        while new := self._new(client, until):
            found += new
            self._taken.update(event.id for event in new)
            until = min(event.occurred for event in new)  # an answer has the newest ones up to then
        numbers = [event.resource.id.removeprefix(self._prefix) for event in found]  # or of a study with a longer name
        return [int(number) for number in numbers if number.isdecimal() and len(number) <= _DIGITS]

    def _new(self, client: SyncPrefectClient, until: datetime) -> list[ReceivedEvent]:
        wanted = EventFilter(
            occurred=EventOccurredFilter(since=self._since, until=until),
            event=EventNameFilter(name=[STOP]),
            resource=EventResourceFilter(id_prefix=[self._prefix]),
        )
        return [event for event in client.read_events(wanted, limit=_MOST).events if event.id not in self._taken]
