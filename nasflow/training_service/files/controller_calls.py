"""Detects that the controller of a service is gone, by a file that its calls touch."""

import time
from pathlib import Path


class ControllerCalls:
    """Detects that no controller has called for more than `patience` seconds.

    Args:
        file: modified by every call of a controller.
    """

    def __init__(self, file: Path, patience: float):
        self._file, self._patience = file, patience
        self._latest, self._since = self._last_call(), time.monotonic()

    def missing(self) -> str:
        """Return a sentence if the time is over, else an empty text. Call this often.

        The time counts from creation or the last call, by a monotonic clock.
        """
        call, now = self._last_call(), time.monotonic()
        if call != self._latest:
            self._latest, self._since = call, now
        return f"no controller has called for {self._patience:g} s" if now - self._since > self._patience else ""

    def _last_call(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return None
