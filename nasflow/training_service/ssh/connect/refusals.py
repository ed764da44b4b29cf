"""Pauses between logins that a host refuses: many hosts lock out who asks too often."""

import logging
import time
from collections.abc import Callable

from nasflow.training_service.ssh.connect.errors import Refused

_LOG = logging.getLogger(__name__)
_FIRST, _LONGEST = 30.0, 600.0  # seconds


class Refusals:
    """Spaces out logins at one host; the pause doubles with each that is refused, up to a limit."""

    def __init__(self) -> None:
        self._reason = ""
        self._until = 0.0
        self._pause = 0.0

    def spaced(self, log_in: Callable[[], None], longest: float) -> None:
        """Log in, unless the last login was refused a short while ago, and warn if it is refused.

        Args:
            log_in: calls `end` if it succeeds.
            longest: the most seconds of the pause after it; at least 30 s and at most ten minutes are taken.

        Raises:
            Refused: it is refused, or was the last time.
        """
        if time.monotonic() < self._until:
            raise Refused(self._reason)
        try:
            log_in()
        except Refused as error:
            self._reason = str(error)
            self._pause = min(2 * self._pause or _FIRST, max(longest, _FIRST), _LONGEST)
            self._until = time.monotonic() + self._pause
            _LOG.warning("%s; the next login is tried in %g s", error, self._pause)
            raise

    def end(self) -> None:
        """Forget earlier refusals, because a login was accepted."""
        self._pause = self._until = 0.0
