"""Jobs that end on their nodes before they begin: more of them in a row are a mistake of the set-up, and no trial's."""

from nasflow.errors import ServiceError

_LIMIT = 3


class StillbornJobs:
    """Counts such jobs in a row."""

    def __init__(self) -> None:
        self._count, self._why = 0, ""

    def add(self, why: str) -> None:
        """Count one. `why` is how to find out, or the reason itself."""
        self._count, self._why = self._count + 1, why

    def clear(self) -> None:
        """Begin anew, because a job has run to its end."""
        self._count = 0

    def check(self) -> None:
        """Raise ServiceError if there are too many to submit another job."""
        if self._count >= _LIMIT:
            raise ServiceError(
                f"training_service: {self._count} jobs in a row ended on their nodes before nasflow began there; "
                f"{self._why}"
            )
