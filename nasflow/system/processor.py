"""What Linux reports about the processor."""

import platform
from functools import lru_cache
from pathlib import Path


@lru_cache
def cpu_info() -> dict[str, str]:
    """Return the fields of the first processor in `/proc/cpuinfo`; empty where there is no such file."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    fields = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in fields}


def cpu_name() -> str:
    """Return the name of the processor's model."""
    return cpu_info().get("model name") or platform.processor()
