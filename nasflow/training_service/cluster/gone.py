"""Waits at a clean-up until a cluster has no job of a study any more."""

import time
from collections.abc import Callable, Sequence

from nasflow.clean_text import shortened
from nasflow.errors import ServiceError
from nasflow.training_service.machine.job_process import GRACE

ACTS_WITHIN = 120.0
"""Seconds that a cluster may take to end a job."""
LOOK = 0.5
"""Seconds between two queries of the cluster while something waits for it."""


def await_gone(kind: str, alive: Callable[[], Sequence[str] | None], withdraw: Callable[[Sequence[str]], None]) -> None:
    """Wait until no run is left, and end the rest by force after a grace period.

    Args:
        kind: the cluster's name.
        alive: returns the names of the runs that are left; None while the cluster does not answer.
        withdraw: ends runs by force.

    Raises:
        ServiceError: some are left, or the cluster does not answer.
    """
    begin = time.monotonic()
    while (left := alive()) is None or left:
        waited = time.monotonic() - begin
        if waited > ACTS_WITHIN:
            why = f"does not end its jobs {shortened(', '.join(left), 300)}" if left else "does not answer"
            raise ServiceError(f"training_service: {kind} {why}; run `nasflow cleanup` later to end what is left")
        if left and waited > GRACE:
            withdraw(left)
        time.sleep(LOOK)
