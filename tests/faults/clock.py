"""A clock that can be set for some processes only: they see the time of day some seconds off, and no other clock."""

import struct
from pathlib import Path

from tests.faults.shim import build

_FORMAT = "q"


class Clock:
    """The time of day as the processes see it that are started with `environment`.

    Their C library is told to ask a small library of ours instead (`LD_PRELOAD`), which adds what stands in a file. As
    on a machine whose clock is set, the monotonic clock goes on undisturbed.

    Args:
        folder: for the library and the file.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        self._offset = folder / "offset"
        self._seconds = 0
        self.set(0)
        self.environment = {"LD_PRELOAD": str(build("clock.c", folder)), "NASFLOW_FAULTS_CLOCK": str(self._offset)}

    def jump(self, seconds: int) -> None:
        """Set the clock forward, or back if negative."""
        self.set(self._seconds + seconds)

    def set(self, seconds: int) -> None:
        """Set the clock to so many seconds off the machine's."""
        self._seconds = seconds
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack(_FORMAT, seconds))
