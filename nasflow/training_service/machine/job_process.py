"""Runs a job in a forked child process, watches its limits, and ends everything it has started."""

import faulthandler
import logging
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from nasflow.system.memory import KillWatch, peak_bytes
from nasflow.system.process_id import is_stopped
from nasflow.training_service.base import JobState, JobStatus
from nasflow.training_service.machine.processes import (
    be_first_to_die_for_memory,
    descendants,
    die_with_parent,
    end_all,
)
from nasflow.training_service.machine.watchdog import Exceeded, Watchdog

_LOG = logging.getLogger(__name__)

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
NOTICE = 20.0
"""Seconds that a job may take to save itself when its node is taken back; clusters give at least 30 by default."""
_POLL = 0.01  # seconds
_ANSWERS_WITHIN = 1.0  # seconds until a process has printed its stack
_STACK = "Stack (most recent call first)"  # what faulthandler prints above it
_CALLS = 8  # of a stack that are shown
_MOST = 2**16  # bytes of a stack that are read
_LOOK = 0.05  # seconds between two looks at whether it is complete


def run_in_child(
    job: Path,
    run: Callable[[Path], int],
    told_to_end: Callable[[], str],
    memory_share: int,
    slot: str | None = None,
    *,
    by_signal: Callable[[], bool] = lambda: False,
) -> JobState:
    """Run a job in a forked child, end all processes it left, and return how it ended.

    It is also ended when it exceeds one of the limits in its spec; if it had been stopped from outside, it is LOST.
    This process must adopt orphans and have no threads.

    Args:
        job: the job's `job.json`; its output is appended to `job.log` beside it.
        run: runs the job, given its `job.json`, and returns its exit code.
        told_to_end: polled; once it returns a reason, the job is ended and LOST for that reason.
        memory_share: memory in bytes that the job can use without taking from others.
        slot: where it runs.
        by_signal: whether `told_to_end` gave its reason because of a signal, so that the node may be taken back.
    """
    log = job.with_name("job.log")
    kills, watchdog = KillWatch(), Watchdog(job)
    flush()
    worker, child = os.getpid(), os.fork()
    if child == 0:
        become_job(worker, log, lambda: run(job))
    why, exceeded = "", None
    while (end := reap(child)) is None and not (why := told_to_end()) and not (exceeded := watchdog.exceeded()):
        kills.look()
        time.sleep(_POLL)
    if end is None and why and by_signal() and watchdog.saves_itself:
        end = _await_saved(child)
    overdue = _overdue(child, log, exceeded, slot) if end is None and exceeded is not None else None
    oom_kills = kills.recent()
    try:
        end_all(lambda: descendants(worker), 0.0 if exceeded else GRACE)
    except TimeoutError as error:  # what is known of the job's end stays true
        _LOG.warning("%s", error)
    reap(child)
    if end is None:
        return overdue or JobState(status=JobStatus.LOST, slot=slot, reason=why)
    return JobState(
        status=JobStatus.EXITED,
        exit_code=end.code if end.code >= 0 else None,
        signal=-end.code if end.code < 0 else None,
        slot=slot,
        reason=last_line(log),
        oom_kills=oom_kills,
        peak_rss=end.peak,
        memory_share=memory_share,
    )


def _overdue(job: int, log: Path, exceeded: Exceeded, slot: str | None) -> JobState:
    """Return the state of a job that is about to be ended because it exceeded a limit."""
    if is_stopped(job):  # so what it ran is not to blame
        reason = f"its process had been stopped from outside (SIGSTOP) when {exceeded.reason}"
        return JobState(status=JobStatus.LOST, slot=slot, reason=reason)
    return JobState(
        status=JobStatus.EXITED,
        signal=signal.SIGKILL,
        slot=slot,
        reason=exceeded.reason,
        limit=exceeded.limit,
        stack=_stack(job, log),
    )


def become_job(worker: int, log: Path, run: Callable[[], int]) -> NoReturn:
    """In the forked child: become an ordinary process, run the job, and exit without the worker's clean-up."""
    code = 1
    try:
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            die_with_parent(worker)
            be_first_to_die_for_memory()
            file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
            os.dup2(file, 1)
            os.dup2(file, 2)
            os.close(file)
            show_stacks()
            code = run()
        except SystemExit as leave:
            if isinstance(leave.code, str):
                sys.stderr.write(leave.code + "\n")
            code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
        except BaseException:
            traceback.print_exc()
        flush()
    finally:
        os._exit(code & 0xFF)


def show_stacks() -> None:
    """Let this process print its Python traceback when native code crashes, and upon SIGUSR2, whatever it is doing."""
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR2, all_threads=False)


def _stack(job: int, log: Path) -> str:
    """Return where the main thread of a job's process is, the innermost call first; empty if it does not answer."""
    if not log.exists():  # it has not even begun
        return ""
    begin, calls = log.stat().st_size, ""
    os.kill(job, signal.SIGUSR2)
    deadline = time.monotonic() + _ANSWERS_WITHIN
    while time.monotonic() < deadline:
        before = calls
        time.sleep(_LOOK)
        with log.open("rb") as file:
            file.seek(begin)
            _, _, calls = file.read(_MOST).decode(errors="replace").partition(_STACK)
        if calls and calls == before:
            break
    return "\n".join(line.strip() for line in calls.splitlines()[1 : 1 + _CALLS])


@dataclass(frozen=True)
class End:
    """How a process ended: exit code (negative for a signal), and peak memory in bytes of it or a descendant."""

    code: int
    peak: int


def reap(child: int) -> End | None:
    """Reap the children that ended, and return the end of `child` if it is among them."""
    end = None
    while True:
        try:
            pid, status, usage = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return end
        if pid == 0:
            return end
        if pid == child:
            end = End(os.waitstatus_to_exitcode(status), peak_bytes(usage.ru_maxrss))


def _await_saved(job: int) -> End | None:
    """Ask a job's own process to end, and wait until it has, or its time to save itself is over."""
    os.kill(job, signal.SIGTERM)
    deadline = time.monotonic() + NOTICE
    while (end := reap(job)) is None and time.monotonic() < deadline:
        time.sleep(_POLL)
    return end


def last_line(log: Path) -> str:
    """Return the last non-empty line of a log, cut to 300 characters."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4096))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines()]
    return next((line[:300] for line in reversed(lines) if line), "")


def flush() -> None:
    """Flush standard output and error."""
    sys.stdout.flush()
    sys.stderr.flush()
