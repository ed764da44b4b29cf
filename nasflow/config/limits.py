"""The `limits` section: how long jobs and their parts may take."""

from pydantic import Field

from nasflow.config.durations import Duration
from nasflow.config.values import Section

STALLED = 600.0
_EPOCHS = 5  # of the longest so far, that a job may take longer than `stalled`
_AT_FIRST = 6  # times as long before its first epoch has ended: its data may have to be prepared


class LimitsConfig(Section):
    """How long jobs and their parts may take. None: no limit.

    A job that exceeds a limit is ended. The trial that was running its own code is blamed and trained again alone; the
    others go on from their checkpoints.
    """

    trial: Duration | None = Field(
        default=None, description="training of a trial, all epochs together: it stops after the epoch that exceeds it"
    )
    epoch: Duration | None = Field(default=None, description="an epoch of a job, with validation and checkpoints")
    start: Duration | None = Field(default=None, description="from the start of a job's process to its first epoch")
    job: Duration | None = Field(
        default=None, description="a job's process; its trials go on in a new job, and none is blamed"
    )
    stalled: Duration | None = Field(
        default=STALLED,
        description="without any progress, beyond 5 times the job's longest epoch; 6 times as long before the first "
        "has ended",
    )

    def stalled_after(self, longest_epoch: float | None) -> float | None:
        """Return the seconds without progress after which a job has stalled; None for no limit.

        Args:
            longest_epoch: seconds of the job's longest epoch; None before the first has ended.
        """
        if self.stalled is None:
            return None
        return _AT_FIRST * self.stalled if longest_epoch is None else self.stalled + _EPOCHS * longest_epoch
