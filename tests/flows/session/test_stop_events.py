"""Events that stop trials are all found, however many come at once."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

from nasflow.flows.session.stop_events import StopEvents


class Server:
    """Answers the newest events that a filter lets through, as Prefect's server does."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def emit(self, resource: str, occurred: datetime) -> None:
        self.events.append(SimpleNamespace(id=uuid4(), resource=SimpleNamespace(id=resource), occurred=occurred))

    def read_events(self, wanted: Any, limit: int) -> Any:
        within = [e for e in self.events if wanted.occurred.since <= e.occurred <= wanted.occurred.until]
        return SimpleNamespace(events=sorted(within, key=lambda e: e.occurred, reverse=True)[:limit])


def test_of_a_burst_none_is_lost() -> None:
    stops, server = StopEvents("digits"), Server()
    began = datetime.now(UTC)
    for number in range(120):
        server.emit(f"nasflow.trial.digits.{number}", began + timedelta(microseconds=number // 2))
    assert sorted(stops.take(server)) == list(range(120))  # type: ignore[arg-type]
    assert stops.take(server) == []  # type: ignore[arg-type]
    server.emit("nasflow.trial.digits.7", datetime.now(UTC))
    assert stops.take(server) == [7]  # type: ignore[arg-type]
