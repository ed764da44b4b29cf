"""A memory cgroup of its own for a test, where the machine lets one be made."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from nasflow.system.memory import memory_groups


class MemoryLimit:
    """A cgroup whose processes may have `limit` bytes together; the kernel ends one of them beyond that."""

    def __init__(self, group: Path, limit: int):
        self.group = group
        names = ("memory.max", "memory.limit_in_bytes")
        (file,) = (group / name for name in names if (group / name).exists())
        file.write_text(str(limit))
        for name in ("memory.swap.max", "memory.memsw.limit_in_bytes"):
            if (group / name).exists():
                (group / name).write_text(str(0 if "swap" in name else limit))

    def take(self, pid: int) -> None:
        """Put a process under the limit, and with it all that it starts from now on."""
        (self.group / "cgroup.procs").write_text(str(pid))


@contextlib.contextmanager
def memory_limit(limit: int) -> Iterator[MemoryLimit]:
    """A limit within this process's own. Skips the test where this process can't set one."""
    around = memory_groups()
    if not around:
        pytest.skip("needs a memory cgroup: the kernel has none")
    group = around[0] / f"nasflow-test-{os.getpid()}-{time.monotonic_ns()}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"needs a memory cgroup: {around[0]} takes none inside ({error.strerror})")
    try:
        if not any((group / name).exists() for name in ("memory.max", "memory.limit_in_bytes")):
            pytest.skip(f"needs a memory cgroup: {around[0]} hands the controller to none inside")
        yield MemoryLimit(group, limit)
    finally:
        deadline = time.monotonic() + 20
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:
            time.sleep(0.05)
        group.rmdir()
