"""Events that stop trials are all found, however many come at once, and stop only trials in training."""

import logging
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest

from benchmarks.study.filling import architecture, study_config
from nasflow.flows.session import control
from nasflow.flows.session.control import Control
from nasflow.flows.session.stop_events import StopEvents
from nasflow.study.study import Study


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


def test_only_a_trial_in_training_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The mark of another would stay, and end it early when it is retried."""
    monkeypatch.setattr(control, "get_run_logger", lambda: logging.getLogger("run"))
    stopped: list[int] = []
    server, watcher = Server(), object.__new__(Control)
    with closing(Study.open(study_config(tmp_path))) as study:
        study.begin_round(0)
        study.submit_trials(0, [architecture(0), architecture(1)])
        study.fail_trial(0, "it diverges")
        watcher._session = SimpleNamespace(study=study, service=SimpleNamespace(stop_trial=stopped.append))  # type: ignore[assignment]
        watcher._stop_events = StopEvents(study.name)
        for number in (0, 1, 7, 10**25):
            server.emit(f"nasflow.trial.{study.name}.{number}", datetime.now(UTC))
        watcher._stop_trials(server)  # type: ignore[arg-type]
    assert stopped == [1]
    assert "trial 0 of study 'large' is failed: only one in training can be stopped" in caplog.text
    assert "study 'large' has no trial 7" in caplog.text
