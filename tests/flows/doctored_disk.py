"""Run a command before whose eyes a tmpfs is mounted: `python doctored_disk.py FOLDER STATE COMMAND...`.

As root of a mount namespace of its own, which no one else sees. In the state `full` nothing is left of its 2 MiB; in
`read-only`, what was in FOLDER is there and can't be changed; in `nearly-full` there is half a GiB.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SIZES = {"full": "2m", "read-only": "64m", "nearly-full": "512m"}


def mount(folder: Path, state: str) -> None:
    with tempfile.TemporaryDirectory() as aside:
        shutil.copytree(folder, aside, dirs_exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZES[state]}", "tmpfs", folder], check=True)
        shutil.copytree(aside, folder, dirs_exist_ok=True)
    if state == "full":
        fill(folder / "filler")
    if state == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", folder], check=True)


def fill(file: Path) -> None:
    with file.open("wb", buffering=0) as filler:
        try:
            while filler.write(bytes(4096)):
                pass
        except OSError:
            return


if __name__ == "__main__":
    mount(Path(sys.argv[1]), sys.argv[2])
    os.execv(sys.argv[3], sys.argv[3:])
