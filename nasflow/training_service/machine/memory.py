"""What the kernel tells about memory: whom it ended for want of it, and how much a process may have.

Read from files, as cgroups(7) and the kernel's cgroup-v1/memory.rst and cgroup-v2.rst describe them. Where there are
none (another system than Linux), nothing is known, which is None.
"""

import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil

_PROC = Path("/proc")
_KILLS = ("memory.events", "memory.oom_control")  # cgroup v2, v1
_LIMITS = ("memory.max", "memory.limit_in_bytes")
_WINDOW = 5.0  # seconds; between the kernel's verdict and the end of a process that has much memory to give back


class KillWatch:
    """How many processes of this one's cgroup the kernel has ended for want of memory, of late.

    All jobs of a machine may be in one cgroup, so a count since a job began would also tell of others' ends.
    """

    def __init__(self, count: Callable[[], int | None] | None = None, clock: Callable[[], float] = time.monotonic):
        self._count, self._clock = count or oom_kills, clock
        self._before = self._latest = (clock(), self._count())

    def look(self) -> None:
        """Call this often, at least every second."""
        if self._clock() - self._latest[0] >= _WINDOW:
            self._before, self._latest = self._latest, (self._clock(), self._count())

    def recent(self) -> int | None:
        """Since 5 to 10 seconds ago, or since this was made."""
        known, count = self._before[1], self._count()
        return None if known is None or count is None else count - known


def oom_kills(proc: Path = _PROC) -> int | None:
    """How often the kernel has ended a process of this one's cgroup, or of the machine if it is in none."""
    places = [group / name for group in memory_groups(proc)[:1] for name in _KILLS]
    counts = (_number_after("oom_kill", place) for place in (*places, proc / "vmstat"))
    return next((count for count in counts if count is not None), None)


def memory_limit(proc: Path = _PROC) -> int:
    """The bytes that this process and all it shares its cgroups with may have: the machine's, or a limit below that."""
    limits = [psutil.virtual_memory().total]
    for place in [group / name for group in memory_groups(proc) for name in _LIMITS]:
        text = _text(place).strip()
        if text.isdecimal():  # else there is no such file, or it says "max"
            limits.append(int(text))
    return min(limits)


def memory_groups(proc: Path = _PROC) -> list[Path]:
    """The folders of this process's memory cgroup and of those around it, innermost first."""
    paths = {}
    for line in _text(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "memory" in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    for kind in ("cgroup", "cgroup2"):  # where both are mounted and v1 has the controller, v2 has not
        for mounted, root in _mounts(kind, proc):
            if kind in paths:
                inside = paths[kind].removeprefix(root).strip("/")
                group = mounted / inside if (mounted / inside).is_dir() else mounted
                around = [parent for parent in group.parents if parent.is_relative_to(mounted)]
                return [group, *around]
    return []


def peak_bytes(max_rss: int) -> int:
    """`ru_maxrss` in bytes."""
    return max_rss if sys.platform == "darwin" else 1024 * max_rss


def _mounts(kind: str, proc: Path) -> list[tuple[Path, str]]:
    """Where the hierarchy of memory cgroups is mounted, and which of its folders that is."""
    found = []
    for line in _text(proc / "self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        filesystem, _, options = source.split(" ", 2)
        if filesystem == kind and (kind == "cgroup2" or "memory" in options.split(",")):
            root, place = mount.split(" ")[3:5]
            found.append((Path(place), root))
    return found


def _number_after(key: str, place: Path) -> int | None:
    """The value in a file of lines `key value`."""
    for line in _text(place).splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return None


def _text(place: Path) -> str:
    """A file's content; empty where there is none that this process may read."""
    try:
        return place.read_text()
    except OSError:
        return ""
