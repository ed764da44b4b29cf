"""Records what a job is doing and since when, in a file that outlives its process.

An exception names its trial; `os._exit`, a segmentation fault and a hang do not. So a job writes into a memory-mapped
file which trial is running its own code, when it last made progress, and when its epoch began. A write takes less than
a microsecond. `nasflow.attempt.follower` finds in it which trial is to blame, and `training_service.machine.watchdog`
ends jobs that exceed their limits.
"""

import mmap
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

FILE = "activity"
"""The file's name in a job's folder."""

_TRIAL, _SINCE, _PROGRESS, _EPOCH, _LONGEST = range(5)  # 64-bit integers; times are of the monotonic clock, in ns
_SIZE = 5 * 8
_NONE = -1
_place: memoryview | None = None


@dataclass(frozen=True)
class Activity:
    """A job's activity as read from its file. Times are of this machine's monotonic clock, in seconds.

    Attributes:
        trial: the trial that is running its own code; None if none is.
        since: when that trial's code began to run, or the code of the last one ended.
        progress: when the job last made progress: a step, a validation batch, an epoch, a copied checkpoint.
        epoch_began: when the present epoch began, with what precedes its first step; None before the first one and
            after the last.
        longest: the seconds that the longest epoch has taken so far.
    """

    trial: int | None
    since: float
    progress: float
    epoch_began: float | None
    longest: float


@contextmanager
def recorded_in(path: Path) -> Iterator[None]:
    """Within this, the other functions write to a file; else they do nothing."""
    global _place  # noqa: PLW0603 - one per process
    now = time.monotonic_ns()
    path.write_bytes(b"".join(field.to_bytes(8, "little", signed=True) for field in (_NONE, now, now, _NONE, 0)))
    with path.open("r+b") as file, mmap.mmap(file.fileno(), _SIZE) as mapped:
        _place = memoryview(mapped).cast("q")
        try:
            yield
        finally:
            _place.release()
            _place = None


class _Running:
    def __init__(self, place: memoryview, trial: int):
        self._place, self._trial = place, trial
        self._before = _NONE

    def __enter__(self) -> None:
        self._before = self._place[_TRIAL]
        self._place[_TRIAL] = self._trial
        self._place[_SINCE] = time.monotonic_ns()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and not issubclass(kind, Exception | SystemExit):
            return  # nothing catches it, as KeyboardInterrupt: the process ends, and this says in which trial's code
        self._place[_TRIAL] = self._before
        self._place[_SINCE] = time.monotonic_ns()


def running(trial: int) -> AbstractContextManager[None]:
    """Within this, record that a trial's own code is running."""
    return nullcontext() if _place is None else _Running(_place, trial)


def progress() -> None:
    """Record that the job has made progress."""
    if _place is not None:
        _place[_PROGRESS] = time.monotonic_ns()


def excuse(seconds: float) -> None:
    """Record that the job has waited so long for something that is not its own: that counts for no limit but `job`."""
    if _place is not None:
        _place[_PROGRESS] = time.monotonic_ns()
        for clock in (_SINCE, _EPOCH):
            if _place[clock] != _NONE:
                _place[clock] += round(seconds * 1e9)


def begin_epoch() -> None:
    """Record that an epoch begins, unless the end of the one before has begun it."""
    if _place is not None and _place[_EPOCH] == _NONE:
        _place[_EPOCH] = _place[_PROGRESS] = time.monotonic_ns()


def end_epoch() -> None:
    """Record that an epoch has ended. What is done from now on belongs to the next one."""
    if _place is not None:
        now = _place[_PROGRESS] = time.monotonic_ns()
        _place[_LONGEST] = max(_place[_LONGEST], now - _place[_EPOCH])
        _place[_EPOCH] = now


def restart_epoch() -> None:
    """Record that the present epoch begins only now. What was done before counts for no epoch."""
    if _place is not None:
        _place[_EPOCH] = _place[_PROGRESS] = time.monotonic_ns()


def end_epochs() -> None:
    """Record that no further epoch begins."""
    if _place is not None:
        _place[_EPOCH] = _NONE


def read(path: Path) -> Activity | None:
    """Return what a job's file says; None if there is no complete file."""
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return None
    if len(content) != _SIZE:
        return None
    trial, since, last, epoch, longest = memoryview(content).cast("q")
    epoch_began = None if epoch == _NONE else epoch / 1e9
    return Activity(None if trial == _NONE else trial, since / 1e9, last / 1e9, epoch_began, longest / 1e9)
