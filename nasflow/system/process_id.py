"""The identity of a process. Its pid alone is not enough, because pids are reused."""

import os
import signal
import socket
import sys
from functools import cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict


class ProcessId(BaseModel):
    """One process: `started` differs for every process that ever has the same pid."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: str

    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        return _started(self.pid) == self.started

    def send(self, number: signal.Signals) -> None:
        """Signal it, if it still runs."""
        if self.alive():
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def process_id(pid: int) -> ProcessId | None:
    """Return the identity of the running process `pid`, None if there is none."""
    started = _started(pid)
    return ProcessId(pid=pid, started=started) if started else None


@cache
def process_table() -> str:
    """Return a name for the set of processes that pids here refer to: a boot of a machine, a namespace in it."""
    if sys.platform != "linux":
        return socket.gethostname()
    return f"{_boot()} {Path('/proc/self/ns/pid').readlink()}"


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped, as by SIGSTOP. False if it does not exist."""
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415 - as below

        try:
            return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        except psutil.NoSuchProcess:
            return False
    fields = _stat(pid)
    return bool(fields) and fields[0] == "T"


def _started(pid: int) -> str | None:
    if sys.platform != "linux":
        import psutil  # noqa: PLC0415 - elsewhere it would only slow the command line's start

        try:
            process = psutil.Process(pid)
            return repr(process.create_time()) if process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.NoSuchProcess:
            return None
    fields = _stat(pid)
    # Ticks since boot, where psutil's create_time moves with the system clock and differs between two observers.
    return None if not fields or fields[0] in "ZX" else f"{_boot()[:8]}-{fields[19]}"


def _stat(pid: int) -> list[str]:
    """Return the fields of a process's `stat` file from its state on; none if it does not exist."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return []


@cache
def _boot() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
