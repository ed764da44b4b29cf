"""The control groups of this process, and what they let it have of the processors.

The files are described in cgroups(7) and the kernel's cgroup-v2.rst and sched-bwc.rst. Where they do not exist (on
systems other than Linux), there are no groups.
"""

from pathlib import Path

PROC = Path("/proc")


def groups(controller: str, proc: Path = PROC) -> list[Path]:
    """Return the folders of this process's cgroup with a controller (`memory`) and its parents, innermost first."""
    paths = {}
    for line in text_of(proc / "self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or controller in controllers.split(","):
            paths["cgroup" if controllers else "cgroup2"] = path
    for kind in ("cgroup", "cgroup2"):  # if both are mounted and v1 has the controller, v2 does not
        for mounted, root in _mounts(kind, controller, proc):
            if kind in paths:
                inside = paths[kind].removeprefix(root).strip("/")
                group = mounted / inside if (mounted / inside).is_dir() else mounted
                around = [parent for parent in group.parents if parent.is_relative_to(mounted)]
                return [group, *around]
    return []


def cpu_quota(proc: Path = PROC) -> float:
    """Return how many cores' time this process may use with all that share its cgroups; infinite without a limit."""
    quotas = [float("inf")]
    for group in groups("cpu", proc):
        v1 = [text_of(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
        match text_of(group / "cpu.max").split() or v1:
            case [quota, period] if quota.isdecimal() and period.isdecimal():  # else "max", -1, or no such file
                quotas.append(int(quota) / int(period))
    return min(quotas)


def text_of(place: Path) -> str:
    """Return a file's content; empty if it is missing or this process may not read it."""
    try:
        return place.read_text()
    except OSError:
        return ""


def _mounts(kind: str, controller: str, proc: Path) -> list[tuple[Path, str]]:
    """Return the mount points of a controller's hierarchy, each with the folder of the hierarchy mounted there."""
    found = []
    for line in text_of(proc / "self/mountinfo").splitlines():
        mount, _, source = line.partition(" - ")
        filesystem, _, options = source.split(" ", 2)
        if filesystem == kind and (kind == "cgroup2" or controller in options.split(",")):
            root, place = mount.split(" ")[3:5]
            found.append((Path(place), root))
    return found
