"""A tmpfs that only this process and its children see.

In the state `full` nothing is left of its 2 MiB; in `read-only`, what was in the folder is there and can't be changed;
in `nearly-full` there is half a GiB.
"""

import ctypes
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

SIZES = {"full": "2m", "read-only": "64m", "nearly-full": "512m"}


NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000  # CLONE_NEWNS, CLONE_NEWUSER


def mount_unseen(folder: Path, state: str) -> None:
    """Mount it in a namespace of its own."""
    enter_namespace()
    mount(folder, state)


def enter_namespace() -> None:
    """From now on what this process mounts is seen by it and its children only; it is root there."""
    user, group = os.geteuid(), os.getegid()
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(NEW_MOUNTS if user == 0 else NEW_MOUNTS | NEW_USERS):
        raise OSError(ctypes.get_errno(), "there is no new namespace")
    if user:
        for name, text in {"setgroups": "deny", "uid_map": f"0 {user} 1", "gid_map": f"0 {group} 1"}.items():
            Path("/proc/self", name).write_text(text)
    subprocess.run(["mount", "--make-rprivate", "/"], check=True)


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
