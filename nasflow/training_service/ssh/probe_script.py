"""A program that inspects a host before anything is shipped there, and prints its findings as one JSON object.

It runs in the host's Python, which may be any version from 3.6 on, with only the standard library, because a Python
that is too old for nasflow must be able to report that. It leaves nothing behind.

Arguments: the work_dir, and as JSON the distributions to report the versions of.
"""

import sys

if __name__ == "__main__" and not sys.path[0]:
    del sys.path[0]  # the user's home, where a file may shadow a module of the standard library

import csv
import errno
import fcntl
import json
import os
import platform
import pwd
import runpy
import shutil
import subprocess
import time
from pathlib import Path

MARK = "nasflow-host: "  # output of the login shell may come before it
MIN_PYTHON = (3, 11)
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP)  # of `flock`, on a file system without locks
_SMI_ANSWERS_WITHIN = 20  # seconds


def look(work_dir: str, distributions: "list[str]") -> "dict[str, object]":
    """Inspect this machine; if Python is too old, report only that."""
    found = {"python": platform.python_version(), "executable": sys.executable}  # type: dict[str, object]
    if sys.version_info[:2] >= MIN_PYTHON:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        found.update(versions=versions(distributions), torch_cuda=torch_cuda(), platform=platform.platform())
        found.update(cpus=len(os.sched_getaffinity(0)), memory=memory, user=user_name(os.getuid()))
        found.update(folder(work_dir))
        found.update(gpus())
        found["time"] = time.time()
    return found


def versions(distributions: "list[str]") -> "dict[str, object]":
    """Return the installed version of each distribution; None if missing."""
    from importlib import metadata  # noqa: PLC0415 - older Pythons have none

    found = {}  # type: dict[str, object]
    for name in distributions:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = None
    return found


def torch_cuda() -> object:
    """Return the CUDA version for which torch is built, or None. Read from a file, because importing torch is slow."""
    from importlib.util import find_spec  # noqa: PLC0415

    spec = find_spec("torch")
    for place in (spec and spec.submodule_search_locations) or ():
        file = Path(place, "version.py")
        if file.exists():
            return runpy.run_path(str(file)).get("cuda")
    return None


def folder(work_dir: str) -> "dict[str, object]":
    """Return whether work_dir can be created and written, by trying, and the free space there."""
    try:
        path = Path(work_dir).expanduser().absolute()
    except RuntimeError:
        return {"work_dir": work_dir, "folder_error": {"full": False, "text": "there is no home of that user there"}}
    there = next(place for place in (path, *path.parents) if is_seen(place))
    error = None
    try:
        try_folder(path)
    except OSError as caught:
        full, unlockable = caught.errno in (errno.ENOSPC, errno.EDQUOT), caught.errno in _NO_LOCKS
        error = {"full": full, "unlockable": unlockable, "text": caught.strerror or str(caught)}
    room = os.statvfs(str(there))
    inodes = room.f_favail if room.f_files else None  # some file systems do not count them
    return {"work_dir": str(path), "folder_error": error, "free": room.f_bavail * room.f_frsize, "free_inodes": inodes}


def try_folder(path: Path) -> None:
    """Create the folder, write and lock a file in it, and remove both again. Raises OSError."""
    made = []
    try:
        for place in [place for place in (*reversed(path.parents), path) if not is_seen(place)]:
            place.mkdir()
            made.append(place)
        file = path / f".nasflow-probe-{os.getpid()}"
        try:
            with file.open("wb") as handle:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                handle.write(bytes(1 << 16))
                handle.flush()
                os.fsync(handle.fileno())
        finally:
            if file.exists():
                file.unlink()
    finally:
        for place in reversed(made):
            place.rmdir()


def is_seen(place: Path) -> bool:
    """Whether the path exists and this user may see it."""
    try:
        return place.exists()
    except PermissionError:
        return False


def gpus() -> "dict[str, object]":
    """Return the GPUs and the processes on them, or why nvidia-smi can't list them."""
    if shutil.which("nvidia-smi") is None:
        return {"gpus": [], "gpu_error": None}
    try:
        rows = ask_smi("--query-gpu=index,name,memory.used,memory.total,uuid")
        users = ask_smi("--query-compute-apps=gpu_uuid,pid,process_name") if rows else []
        found = [
            {
                "index": int(index),
                "name": name,
                "memory_used": used,
                "memory_total": total,
                "users": [process(pid, program) for of, pid, program in users if of == uuid],
            }
            for index, name, used, total, uuid in rows
        ]
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        return {"gpus": [], "gpu_error": str(error)}
    return {"gpus": found, "gpu_error": None}


def ask_smi(query: str) -> "list[list[str]]":
    """Return the cells that nvidia-smi prints. Raises ValueError with its message if it fails."""
    command = ["nvidia-smi", query, "--format=csv,noheader"]
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=_SMI_ANSWERS_WITHIN, check=False
    )
    text = done.stdout.decode(errors="replace").strip()
    if "No devices were found" in text:
        return []
    rows = [[cell.strip() for cell in row] for row in csv.reader(text.splitlines())]
    if done.returncode != 0 or any(len(row) != query.count(",") + 1 for row in rows):
        raise ValueError((text.splitlines() or [f"exit code {done.returncode}"])[0])
    return rows


def process(pid: str, program: str) -> str:
    """Describe a process for display."""
    try:
        owner = user_name(Path("/proc", pid).stat().st_uid)
    except OSError:
        owner = "?"  # it has ended, or the pid is from another container
    return f"{Path(program).name} ({owner}, pid {pid})"


def user_name(uid: int) -> str:
    """Return the name of a user, or the uid if it has none."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


if __name__ == "__main__":
    print(MARK + json.dumps(look(sys.argv[1], json.loads(sys.argv[2]))))
