"""Memory as reported by the kernel: processes killed for lack of it, and how much a process may use.

The files are described in cgroups(7) and the kernel's cgroup-v1/memory.rst and cgroup-v2.rst. Where they do not exist
(on systems other than Linux), values are unknown: None.
"""

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import psutil

from nasflow.system.cgroups import PROC, groups, text_of

_KILLS = ("memory.events", "memory.oom_control")  # cgroup v2, v1
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_USED = ("memory.current", "memory.usage_in_bytes")
_OF_FILES = (("inactive_file", "active_file"), ("total_inactive_file", "total_active_file"))  # cgroup v2, v1
_WINDOW = 5.0  # seconds between the kernel's kill and the end of a process that has much memory to release


class KillWatch:
    """Counts the recent out-of-memory kills in the cgroup of this process.

    All jobs of a machine may share one cgroup, so a count since a job began would include kills of other jobs.
    """

    def __init__(self, count: Callable[[], int | None] | None = None, clock: Callable[[], float] = time.monotonic):
        self._count, self._clock = count or oom_kills, clock
        self._before = self._latest = (clock(), self._count())

    def look(self) -> None:
        """Read the counter. Call this at least every second."""
        if self._clock() - self._latest[0] >= _WINDOW:
            self._before, self._latest = self._latest, (self._clock(), self._count())

    def recent(self) -> int | None:
        """Return the number of kills in the last 5 to 10 seconds, or since this was created."""
        known, count = self._before[1], self._count()
        return None if known is None or count is None else count - known


def oom_kills(proc: Path = PROC) -> int | None:
    """Return the number of out-of-memory kills in the cgroup of this process, or on the machine if it is in none."""
    places = [group / name for group in memory_groups(proc)[:1] for name in _KILLS]
    counts = (_number_after("oom_kill", place) for place in (*places, proc / "vmstat"))
    return next((count for count in counts if count is not None), None)


def memory_limit(proc: Path = PROC) -> int:
    """Return the memory limit in bytes of this process and all that share its cgroups; at most the machine's memory."""
    limits = [_number_in(group, _LIMITS) for group in memory_groups(proc)]
    return min([psutil.virtual_memory().total, *(limit for limit in limits if limit is not None)])


def available_memory(proc: Path = PROC) -> int:
    """Return how many bytes this process can still get, from the machine and within the limits of its cgroups.

    What the kernel has kept of files that were read counts as free.
    """
    free = [psutil.virtual_memory().available]
    for group in memory_groups(proc):
        limit, used = (_number_in(group, names) for names in (_LIMITS, _USED))
        if limit is not None and used is not None:
            kept = [_number_after(key, group / "memory.stat") for keys in _OF_FILES for key in keys]
            free.append(limit - used + sum(number for number in kept if number is not None))
    return max(0, min(free))


def memory_groups(proc: Path = PROC) -> list[Path]:
    """Return the folders of this process's memory cgroup and its parents, innermost first."""
    return groups("memory", proc)


def peak_bytes(max_rss: int) -> int:
    """Convert `ru_maxrss` to bytes."""
    return max_rss if sys.platform == "darwin" else 1024 * max_rss


def _number_in(group: Path, names: Sequence[str]) -> int | None:
    """Return the number in the first of these files that has one; None if they are missing or hold "max"."""
    texts = (text_of(group / name).strip() for name in names)
    return next((int(text) for text in texts if text.isdecimal()), None)


def _number_after(key: str, place: Path) -> int | None:
    """Return the value of `key` in a file of lines `key value`."""
    for line in text_of(place).splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return None
