"""Detects that the controller of a service is gone, by a file that its calls touch."""

import time
from pathlib import Path


class ControllerCalls:
    """Detects that no controller has called for more than `patience` seconds; None for no limit."""

    def __init__(self, file: Path, patience: float | None):
        self._file, self.patience = file, patience
        self._latest, self._since = self._beat(), time.monotonic()

    def stopped(self) -> bool:
        """Whether the time is over. Call this often. Counts from creation, by a monotonic clock."""
        if self.patience is None:
            return False
        beat, now = self._beat(), time.monotonic()
        if beat != self._latest:
            self._latest, self._since = beat, now
        return now - self._since > self.patience

    def _beat(self) -> int | None:
        try:
            return self._file.stat().st_mtime_ns
        except FileNotFoundError:
            return None
