"""A process that loads data and is ended from outside, as with all processes of a job, costs no trial anything."""

import signal
from pathlib import Path

import pytest

from nasflow.errors import InfrastructureError
from nasflow.job.events import Event, Evicted
from nasflow.training.training_job import TrainingJob
from tests.training.jobs import evaluator, make_job


def test_no_trial_is_blamed(tmp_path: Path) -> None:
    config = evaluator(data={"target": "ended_workers.py:data"})
    spec = make_job("ended_workers.py:build", config, [{"signal": int(signal.SIGTERM)}] * 2)
    events: list[Event] = []
    with pytest.raises(InfrastructureError, match=r"was asked to end: DataLoader worker \(pid \d+\) is killed by"):
        TrainingJob(spec, tmp_path, events.append).run()
    assert not [event for event in events if isinstance(event, Evicted)]
