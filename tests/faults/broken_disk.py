"""A disk on which writing fails for some processes, or which forgets, as in a power cut, what they did not sync."""

import shutil
import struct
import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.faults.shim import build

_FORMAT = "=i252s1920s1920s"


class BrokenDisk:
    """Writing below some folders can be made to fail for the processes that are started with `environment`.

    Args:
        folder: for a library and a file.
    """

    def __init__(self, folder: Path):
        folder.mkdir(parents=True)
        self._control = folder / "control"
        self._synced = folder / "synced"
        self._remembered: Sequence[Path] = []
        self.work()
        library = build("broken_disk.c", folder)
        self.environment = {"LD_PRELOAD": str(library), "NASFLOW_FAULTS_DISK": str(self._control)}

    def fail(self, number: int, folders: Sequence[Path]) -> None:
        """From now on, writing below these folders fails with this error number."""
        self._set(number, folders, self._remembered)

    def work(self) -> None:
        """From now on, nothing fails."""
        self._set(0, [], self._remembered)

    def remember(self, folders: Sequence[Path]) -> None:
        """Note from now on what of the files below these folders, of which there are none yet, is synced."""
        shutil.rmtree(self._synced, ignore_errors=True)
        self._synced.mkdir()
        self._remembered = folders
        self.work()

    def forget(self, file: Path) -> bool:
        """Set a file back to what of it was synced, if anything. Whether that changes it."""
        born = subprocess.run(["stat", "-c", "%i %W %.W", file], check=True, capture_output=True, text=True).stdout
        inode, seconds, exact = born.split()
        kept = self._synced / f"{inode}-{seconds}-{int(exact.partition('.')[2])}"
        content = kept.read_bytes() if kept.exists() else b""
        changed = content != file.read_bytes()
        if changed:
            file.write_bytes(content)
        return changed

    def _set(self, number: int, failing: Sequence[Path], kept: Sequence[Path]) -> None:
        lists = [b"".join(bytes(folder) + b"\0" for folder in folders) for folders in (failing, kept)]
        with self._control.open("r+b" if self._control.exists() else "wb") as file:
            file.write(struct.pack(_FORMAT, number, bytes(self._synced) if kept else b"", *lists))
