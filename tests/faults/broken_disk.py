"""A disk on which writing fails for some processes, as after a remount for reading only or with a broken device."""

import struct
from collections.abc import Sequence
from pathlib import Path

from tests.faults.shim import build

_FORMAT = "=i4092s"


class BrokenDisk:
    """Writing below some folders can be made to fail for the processes that are started with `environment`.

    Args:
        folder: for a library and a file.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        self._control = folder / "control"
        self._control.write_bytes(struct.pack(_FORMAT, 0, b""))
        library = build("broken_disk.c", folder)
        self.environment = {"LD_PRELOAD": str(library), "NASFLOW_FAULTS_DISK": str(self._control)}

    def fail(self, number: int, folders: Sequence[Path] = ()) -> None:
        """From now on, writing below these folders fails with this error number; 0 for none."""
        names = b"".join(bytes(folder) + b"\0" for folder in folders)
        with self._control.open("r+b") as file:
            file.write(struct.pack(_FORMAT, number, names))
