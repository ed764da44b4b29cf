"""The process between a job and a trial's program: when the job ends, it ends the program and all that this started.

It is a script, `guard.py LEASH TURN COMMAND...`, run without site packages to start within milliseconds; so it imports
only the standard library. LEASH is a pipe that the job holds open for as long as the program may run; TURN is a locked
file, which the guard keeps open to its end, so that the trial's next program begins after that. It exits as the program
has, by the same code or signal.
"""

import contextlib
import ctypes
import os
import resource
import select
import signal
import sys
import time
from pathlib import Path

GRACE = 2.0
"""Seconds between SIGTERM and SIGKILL."""
NOT_STARTED = 126
"""The exit code if the program can't be started, as in a shell."""
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # linux/prctl.h
_FIRST_TO_DIE = "1000"  # for want of memory: before the job
_POLL = 0.01  # seconds


def main() -> None:
    """Start the program, wait for its end or the job's, and leave nothing behind."""
    leash, turn, command = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    for ours in (leash, turn):
        os.set_inheritable(ours, False)
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    news, alarm = os.pipe()
    os.set_blocking(alarm, False)
    signal.set_wakeup_fd(alarm)
    for number in (signal.SIGTERM, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)
    program = _start(command)
    status, told = None, False
    while status is None and not told:
        ready, _, _ = select.select([leash, news], [], [])
        told = leash in ready or (news in ready and signal.SIGTERM in os.read(news, 64))
        status = _reap(program)
    _end(program, GRACE if status is None else 0.0)
    _exit_as(128 + signal.SIGTERM if status is None else status)


def _start(command: list[str]) -> int:
    parent, program = os.getpid(), os.fork()
    if program:
        return program
    try:
        os.setsid()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(_FIRST_TO_DIE)
        if os.getppid() == parent:  # else it ended before the kernel knew
            os.execvp(command[0], command)  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{command[0]}: {error.strerror}\n")
        sys.stderr.flush()
    finally:
        os._exit(NOT_STARTED)


def _reap(program: int) -> int | None:
    """Reap the processes that ended. Return how the program has, if it is among them."""
    end = None
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG)) != (0, 0):
            if found[0] == program:
                end = os.waitstatus_to_exitcode(found[1])
    return end


def _end(program: int, grace: float) -> None:
    """End what is left of the program's processes; those whose parents have ended are children of this one."""
    begin, signals = time.monotonic(), [signal.SIGTERM] if grace else []
    while _has_children():
        if time.monotonic() - begin >= grace:
            signals = [signal.SIGKILL]
        for number in signals:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(program, number)
            for child in _children() if number == signal.SIGKILL else []:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(child, number)
        signals = []
        time.sleep(_POLL)


def _has_children() -> bool:
    try:
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
    except ChildProcessError:
        return False
    return True


def _children() -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:
        return []


def _exit_as(code: int) -> None:
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with contextlib.suppress(OSError, ValueError):  # those that can't be caught
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(code & 0xFF)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    main()
