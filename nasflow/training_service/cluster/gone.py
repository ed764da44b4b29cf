"""Waits at a clean-up until a cluster has no job of a study any more."""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from nasflow.clean_text import shortened
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.seen import Seen
from nasflow.training_service.machine.job_process import GRACE

ACTS_WITHIN = 120.0
"""Seconds that a cluster may take to end a job."""
LOOK = 0.5
"""Seconds between two queries of the cluster while something waits for it."""


def await_gone(
    kind: str,
    root: Path,
    look: Callable[[], Mapping[str, Seen] | None],
    withdraw: Callable[[Sequence[str]], None],
) -> None:
    """Wait until no run is left, and end the rest by force after a grace period.

    Runs whose programs have ended are not waited for after that: an epilog of the cluster may take long.

    Args:
        kind: the cluster's name.
        root: the study's root.
        look: returns the runs of the root that the cluster knows, by name; None while it does not answer.
        withdraw: ends runs by force.

    Raises:
        ServiceError: some are left, or the cluster does not answer.
    """
    begin = time.monotonic()
    while (seen := look()) is None or any(not run.status.finished for run in seen.values()):
        left = [name for name, run in (seen or {}).items() if not run.status.finished]
        waited = time.monotonic() - begin
        if waited > ACTS_WITHIN:
            why = f"does not end its jobs {shortened(', '.join(left), 300)}" if left else "does not answer"
            raise ServiceError(f"training_service: {kind} {why}; run `nasflow cleanup` later to end what is left")
        if seen is not None and waited > GRACE:
            withdraw(left)
            if all(seen[name].status is JobStatus.RUNNING and _has_ended(Run.named(root, name)) for name in left):
                return
        time.sleep(LOOK)


def _has_ended(run: Run) -> bool:
    """Whether a run's own program has recorded its end; of a run that this root does not have, it has not."""
    return run.given.exists() and run.ended() is not None
