"""Jobs that end before they begin: more of them in a row are a mistake of the set-up, and no trial's."""

import time

from nasflow.clean_text import clean_text
from nasflow.errors import ServiceError

_LIMIT = 3
_LOG_SHOWN = 600  # characters


class StillbornJobs:
    """Counts such jobs in a row."""

    def __init__(self) -> None:
        self._count, self._counted_at = 0, float("-inf")
        self._where = self._why = ""

    def add(self, why: str, where: str = "on their nodes") -> None:
        """Count one. `why` is how to find out, or the reason itself."""
        self._count, self._counted_at = self._count + 1, time.monotonic()
        self._where, self._why = where, why

    def add_lost(self, reason: str, there_at: float) -> None:
        """Count one that the cluster itself ended, but of those that one event ends, such as a drain, only the first.

        Args:
            reason: the cluster's word on its end.
            there_at: a time (monotonic) at which the cluster had it.
        """
        if there_at > self._counted_at:
            self.add(f"of the last: {reason}", "in the cluster")

    def add_silent(self, where: str, kind: str, log: str, reason: str) -> None:
        """Count one of which the program has recorded nothing.

        Args:
            where: where to look.
            kind: the cluster's name.
            log: what the cluster itself has of its output.
            reason: the cluster's word on its end.
        """
        if words := " ".join(clean_text(log).split())[-_LOG_SHOWN:]:
            where += f", and {kind}'s own log of it ends with: {words}"
        elif reason:
            where += f"; of the last: {reason}"
        self.add(where)

    def clear(self) -> None:
        """Begin anew, because a job that began has ended."""
        self._count = 0

    def check(self) -> None:
        """Raise ServiceError if there are too many to submit another job."""
        if self._count >= _LIMIT:
            raise ServiceError(
                f"training_service: {self._count} jobs in a row ended {self._where} before nasflow began there; "
                f"{self._why}"
            )
