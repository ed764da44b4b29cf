"""Notices that a job exceeds one of its limits, from outside its process."""

import time
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel

from nasflow.config.durations import duration_text
from nasflow.config.limits import LimitsConfig
from nasflow.job import activity

_EVERY = 0.2  # seconds between two looks at the job's file
_PAUSE = 5.0  # seconds between two looks after which this process itself must have been stopped


@dataclass(frozen=True)
class Exceeded:
    """A limit that a job exceeded: its key in the config, and a sentence that is the same each time."""

    limit: str
    reason: str


class _Checkpoints(BaseModel):
    on_preempt: bool = False


class _Spec(BaseModel):
    """What is read here of a job's spec."""

    limits: LimitsConfig = LimitsConfig()
    checkpoint: _Checkpoints = _Checkpoints()


class Watchdog:
    """Watches one job, which begins now. Time in which this process was stopped, as by SIGSTOP, does not count.

    Args:
        job: the job's `job.json`; its activity is recorded in the same folder.

    Attributes:
        saves_itself: whether the job saves the running epoch when it is asked to end.
    """

    def __init__(self, job: Path):
        spec = _read(job)
        self._limits, self.saves_itself = spec.limits, spec.checkpoint.on_preempt
        self._file = job.with_name(activity.FILE)
        self._began = self._looked = self._floor = time.monotonic()

    def exceeded(self) -> Exceeded | None:
        """Return the limit that the job exceeds; None if it exceeds none. Call this often."""
        now = time.monotonic()
        if now - self._looked < _EVERY:
            return None
        if now - self._looked > _PAUSE:
            self._floor = now
        self._looked = now
        doing = activity.read(self._file)
        if doing is not None and doing.progress < self._began:  # of an earlier start of the job
            doing = None
        return next(
            (
                Exceeded(key, f"{what} took longer than limits.{key} allows ({duration_text(limit)})")
                for key, what, since, limit in self._clocks(doing)
                if since is not None and limit is not None and now - max(since, self._floor) > limit
            ),
            None,
        ) or self._stalled(doing, now)

    def _clocks(self, doing: activity.Activity | None) -> list[tuple[str, str, float | None, float | None]]:
        """Return key, name, begin and limit of what may take too long."""
        limits = self._limits
        before_first = doing is None or (doing.epoch_began is None and doing.longest == 0)
        return [
            ("job", "the job", self._began, limits.job),
            ("start", "the start of the job", self._began if before_first else None, limits.start),
            ("epoch", "an epoch", doing.epoch_began if doing else None, limits.epoch),
            ("trial", "a trial", doing.since if doing and doing.trial is not None else None, limits.trial),
        ]

    def _stalled(self, doing: activity.Activity | None, now: float) -> Exceeded | None:
        last = max(doing.progress, doing.since) if doing else self._began
        limit = self._limits.stalled_after(doing.longest if doing and doing.longest else None)
        if limit is None or now - max(last, self._floor) <= limit:
            return None
        return Exceeded("stalled", "the job made no progress for longer than limits.stalled allows")


def _read(job: Path) -> _Spec:
    try:
        return _Spec.model_validate_json(job.read_bytes())
    except (OSError, ValueError):  # the job, which reads it too, says what is wrong with it
        return _Spec()
