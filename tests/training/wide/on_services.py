"""A trial on two devices of a training service whose jobs run on this machine."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import psutil

from nasflow.job.events import Epoch, Event, Final, Started, parse_event
from nasflow.testing.service_jobs import finish, until
from nasflow.training_service.base import JobHandle, TrainingService
from tests.training.wide.jobs import assert_equal, solo, state, wide

_ENDLESS = 10**6


def assert_goes_on_after_a_kill(
    service: TrainingService,
    root: Path,
    other: Path,
    kill: Callable[[int], None] | None = None,
    *,
    devices: int = 2,
    nodes: int = 1,
) -> None:
    """One of its processes is killed; the next job trains on from the last epoch, to what one process comes to.

    Args:
        service: runs real jobs, one at a time.
        root: of the service.
        other: a new folder.
        kill: kills something, given the job's own process; by default, its last rank there.
        devices: ranks of the trial on each machine.
        nodes: its machines.
    """
    first = service.submit(wide("fsdp", devices, nodes=nodes, epochs=_ENDLESS))
    until(lambda: _epochs(service, first) or service.status(first).status.finished, "an epoch", 120)
    (started,) = [event for event in _events(service, first) if isinstance(event, Started)]
    (kill or partial(_kill_last_rank, devices))(started.pid)
    finish(service, first)
    done = _epochs(service, first)
    assert done == [*range(1, len(done) + 1)]

    spec = wide("fsdp", devices, nodes=nodes, epochs=len(done) + 2).model_copy(update={"job_id": "second"})
    second = service.submit(spec)
    assert finish(service, second).exit_code == 0, service.log_tail(second)
    assert _epochs(service, second) == [len(done) + 1, len(done) + 2]
    assert isinstance(_events(service, second)[-2], Final)
    service.fetch("trials/00000")
    assert_equal(state(root), solo(spec, other))
    assert not list((root / "trials/00000").glob("epoch-*.ranks.*")), "the last checkpoint has the weights whole"
    assert not (root / "trials/00000/ranks").exists()


def _kill_last_rank(devices: int, pid: int) -> None:
    ranks = psutil.Process(pid).children()
    assert len(ranks) == devices
    ranks[-1].kill()


def _events(service: TrainingService, handle: JobHandle) -> list[Event]:
    lines, _ = service.events(handle)
    return [event for line in lines if (event := parse_event(line)) is not None]


def _epochs(service: TrainingService, handle: JobHandle) -> list[int]:
    """Those that were trained in this job."""
    return [event.epoch for event in _events(service, handle) if isinstance(event, Epoch) and not event.replayed]
