"""A clock that can be set for some processes only: they see the time of day some seconds off, and no other clock."""

import shutil
import struct
import subprocess
from pathlib import Path

_SOURCE = Path(__file__).with_name("clock.c")
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
        library = folder / "clock.so"
        command = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)]
        subprocess.run(command, check=True, capture_output=True, text=True)
        self.environment = {"LD_PRELOAD": str(library), "NASFLOW_FAULTS_CLOCK": str(self._offset)}

    @staticmethod
    def lacking() -> str | None:
        """Why there can be no such clock here."""
        return None if shutil.which("cc") else "no C compiler (cc)"

    def jump(self, seconds: int) -> None:
        """Set the clock forward, or back if negative."""
        self.set(self._seconds + seconds)

    def set(self, seconds: int) -> None:
        """Set the clock to so many seconds off the machine's."""
        self._seconds = seconds
        with self._offset.open("r+b" if self._offset.exists() else "wb") as file:
            file.write(struct.pack(_FORMAT, seconds))
