"""Finding and ending processes, and what a process asks of the kernel."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import psutil

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_OOM_SCORE = 500  # of -1000 to 1000; the higher, the sooner the kernel ends a process for want of memory
_KILLED_WITHIN = 20.0  # seconds; longer than this after SIGKILL, a process hangs in the kernel


def descendants(pid: int) -> list[psutil.Process]:
    """The running processes below `pid`, also those in sessions of their own."""
    try:
        return [p for p in psutil.Process(pid).children(recursive=True) if _running(p)]
    except psutil.NoSuchProcess:
        return []


def carriers(name: str, value: str) -> list[psutil.Process]:
    """The running processes, this one apart, that were started with the environment variable `name` set to `value`."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.pid != os.getpid() and process.environ().get(name) == value and _running(process):
                found.append(process)
        except (psutil.Error, OSError):
            continue  # gone by now, or another user's
    return found


def end_all(find: Callable[[], Iterable[psutil.Process]], grace: float = 0.0) -> None:
    """Send SIGTERM, after `grace` seconds SIGKILL, to what `find` finds, until it finds nothing more.

    Raises:
        TimeoutError: a process outlived SIGKILL.
    """
    start, told = time.monotonic(), set()
    while processes := list(find()):
        waited = time.monotonic() - start
        if waited > grace + _KILLED_WITHIN:
            raise TimeoutError(f"processes {[p.pid for p in processes]} are still there after SIGKILL")
        for process in processes:
            if waited < grace and process in told:
                continue
            told.add(process)
            try:
                process.send_signal(signal.SIGTERM if waited < grace else signal.SIGKILL)
            except psutil.NoSuchProcess:
                continue
        psutil.wait_procs(processes, timeout=0.02)


def adopt_orphans() -> None:
    """Make this process the new parent of all its descendants whose own parent ends (Linux; elsewhere nothing)."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel signal this process when its parent, process `parent`, ends (Linux; elsewhere nothing)."""
    _prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), by)


def be_first_to_die_for_memory() -> None:
    """Let the kernel end this process, rather than one that needs less, where memory runs out (Linux; else nothing)."""
    score = Path("/proc/self/oom_score_adj")  # everyone may raise it
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
