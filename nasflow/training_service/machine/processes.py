"""Finds and ends processes, and sets process options of the kernel."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_OOM_SCORE = 500  # from -1000 to 1000; the kernel kills the process with the highest score first when memory runs out
KILLED_WITHIN = 20.0
"""Seconds; a process that survives SIGKILL for longer hangs in the kernel."""


def descendants(pid: int, itself: bool = False) -> list[psutil.Process]:
    """Return the running descendants of `pid`, including those in their own sessions; with `itself`, also `pid`."""
    try:
        process = psutil.Process(pid)
        below = process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []
    return [p for p in ([process, *below] if itself else below) if _running(p)]


def carriers(name: str, value: str) -> list[psutil.Process]:
    """Return the running processes, except this one, that started with environment variable `name` set to `value`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(name) == value and _running(process):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # ended meanwhile, or another user's
    return found


def end_all(
    find: Callable[[], Iterable[psutil.Process]], grace: float = 0.0, killed_within: float = KILLED_WITHIN
) -> None:
    """Send SIGTERM, after `grace` seconds SIGKILL, to the processes from `find` until it returns none.

    Raises:
        TimeoutError: a process outlived SIGKILL by `killed_within` seconds.
    """
    start, signalled = time.monotonic(), set()
    while processes := list(find()):
        waited = time.monotonic() - start
        if waited > grace + killed_within:
            pids = ", ".join(str(process.pid) for process in processes)
            raise TimeoutError(
                f"SIGKILL has not ended process {pids}, which hangs in the kernel: mend the mount or the GPU that it "
                "waits for, or reboot"
            )
        for process in processes:
            if waited < grace and process in signalled:
                continue
            signalled.add(process)
            try:
                process.send_signal(signal.SIGTERM if waited < grace else signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, timeout=0.02)


def adopt_orphans() -> None:
    """Make this process the parent of any descendant after its own parent ends (Linux; no effect elsewhere)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel signal this process when its parent, process `parent`, ends (Linux; no effect elsewhere)."""
    _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # the parent ended before the line above
        os.kill(os.getpid(), by)


def be_first_to_die_for_memory() -> None:
    """Let the kernel kill this process before others when memory runs out (Linux; no effect elsewhere)."""
    score = Path("/proc/self/oom_score_adj")  # raising it needs no privilege
    if sys.platform == "linux" and os.access(score, os.W_OK) and int(score.read_text()) < _OOM_SCORE:
        score.write_text(str(_OOM_SCORE))


def _running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux" and ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")
