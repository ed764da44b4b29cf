"""What control groups let a process have of the processors, by the kernel's files."""

from pathlib import Path

import pytest

from nasflow.system.cgroups import cpu_quota

V2 = "0::/user/job\n", "29 23 0:26 / {cgroups} rw,nosuid - cgroup2 cgroup2 rw\n"
V1 = (
    "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/other\n0::/\n",
    "35 31 0:32 /docker/abc {cgroups}/cpu ro - cgroup cgroup rw,cpu,cpuacct\n"
    "29 23 0:26 / {cgroups}/unified rw - cgroup2 none rw\n",
)


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"user/job/cpu.max": "200000 100000\n"}, 2.0),
        ({"user/job/cpu.max": "max 100000\n", "user/cpu.max": "150000 100000\n"}, 1.5),
        ({"user/job/cpu.max": "50000 100000\n", "user/cpu.max": "max 100000\n", "cpu.max": "400000 100000\n"}, 0.5),
        ({"user/job/cpu.max": "max 100000\n"}, float("inf")),
        ({}, float("inf")),
    ],
)
def test_v2(tmp_path, files, cores):
    assert cpu_quota(machine(tmp_path, *V2, files)) == cores


@pytest.mark.parametrize(("quota", "cores"), [("300000", 3.0), ("-1", float("inf")), ("", float("inf"))])
def test_v1_of_a_container_that_sees_its_own_only(tmp_path, quota, cores):
    files = {"cpu/cpu.cfs_quota_us": f"{quota}\n", "cpu/cpu.cfs_period_us": "100000\n"}
    assert cpu_quota(machine(tmp_path, *V1, files)) == cores


def test_without_cgroups_there_is_no_limit(tmp_path):
    assert cpu_quota(tmp_path / "nowhere") == float("inf")


def machine(folder: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> Path:
    """A /proc, and cgroups beside it."""
    proc = {"proc/self/cgroup": cgroup, "proc/self/mountinfo": mountinfo}
    for name, text in {**proc, **{f"cgroup/{name}": text for name, text in files.items()}}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text.format(cgroups=folder / "cgroup"))
    return folder / "proc"
