"""Jobs that end before their time, to go on from their checkpoints."""

import signal
from pathlib import Path

import pytest

from nasflow.errors import PreemptedError
from nasflow.job.events import Epoch, Event
from nasflow.job.spec import JobSpec, trial_dir
from nasflow.training.training_job import TrainingJob


class Interrupted(BaseException):
    """Ends a job from within, as Ctrl-C would."""


def interrupted(spec: JobSpec, root: Path, trial: int, epoch: int) -> list[Event]:
    """Train until an epoch of a trial is reported; return the events."""
    events: list[Event] = []

    def tell(event: Event) -> None:
        events.append(event)
        if isinstance(event, Epoch) and (event.trial, event.epoch) == (trial, epoch):
            raise Interrupted

    with pytest.raises(Interrupted):
        TrainingJob(spec, root, tell).run()
    return events


def preempted(spec: JobSpec, root: Path, saved: bool = True) -> list[Event]:
    events: list[Event] = []
    with pytest.raises(PreemptedError) as caught:
        TrainingJob(spec, root, events.append).run()
    assert caught.value.saved is saved
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    return events


def halves(root: Path, trial: int = 0) -> list[str]:
    """The names of a trial's states within an epoch."""
    return [path.name for path in sorted(trial_dir(root, trial).glob("*.within.*"))]
