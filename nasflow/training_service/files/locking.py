"""Acquires a file lock, but does not wait for ever for another process that keeps it."""

import errno
import fcntl
import os
import threading
import time
from pathlib import Path
from typing import BinaryIO

import psutil

from nasflow.errors import ServiceError
from nasflow.job import disk_full
from nasflow.system.process_id import is_stopped

_STOPPED = 10.0  # seconds for which a stopped process may keep a lock that others wait for
_ALIVE = disk_full.SECONDS + 60.0  # seconds for any other, which may be waiting for room on the disk
_POLL = 0.002  # seconds
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}
_LOOK = 1.0  # seconds between two looks at the holder

_turns: dict[Path, threading.Lock] = {}
os.register_at_fork(after_in_child=_turns.clear)  # threads that hold them are not in the child


def turn_of_thread(path: Path) -> threading.Lock:
    """Return the lock by which threads of this process take turns at the lock of a file.

    They wait for each other without a limit, so that the limit of `acquire_soon` is only for other processes.
    """
    return _turns.setdefault(path, threading.Lock())


def acquire_soon(file: BinaryIO) -> None:
    """Acquire the exclusive lock (`flock`) of an open file.

    Raises:
        ServiceError: another process has kept it for too long; the message names that process. Or the file system has
            no locks.
    """
    begin = looked = time.monotonic()
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            now = time.monotonic()
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            raise ServiceError(
                f"work_dir: the file system of {file.name} has no file locks (flock: {error.strerror}); mount it with "
                "them (Lustre: option flock; NFS: without nolock), or set work_dir to a folder on another one"
            ) from error
        if now - looked > _LOOK:
            looked = now
            holder = holder_of(file)
            stopped = holder is not None and is_stopped(holder.pid)
            if now - begin > (_STOPPED if stopped else _ALIVE):
                raise ServiceError(_sentence(file, holder, stopped, now - begin))
        time.sleep(_POLL)


def holder_of(file: BinaryIO) -> psutil.Process | None:
    """Return the process that holds the lock of an open file, if the system tells (Linux) and it is on this machine."""
    locks = Path("/proc/locks")
    if not locks.exists():
        return None
    inode = os.fstat(file.fileno()).st_ino
    for line in locks.read_text().splitlines():
        words = line.split()  # 1: FLOCK ADVISORY WRITE 1234 fe:00:5678 0 EOF; a waiting process has "->"
        if words[1] == "FLOCK" and words[5].rpartition(":")[2] == str(inode):
            try:
                return psutil.Process(int(words[4]))
            except (psutil.Error, ValueError):
                return None
    return None


def _sentence(file: BinaryIO, holder: psutil.Process | None, stopped: bool, waited: float) -> str:
    lock = f"training_service: the lock {file.name} was not free for {waited:.0f} s"
    if holder is None:
        return f"{lock}; find the process that holds it (fuser {file.name}), end it, and run this again"
    state = "which is stopped" if stopped else "which does not release it"
    how = f"continue it (kill -CONT {holder.pid}) or end it (kill -KILL {holder.pid})"
    return f"{lock}: it is held by process {holder.pid}, {state}; {how}, and run this again"
