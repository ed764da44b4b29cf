"""One core, one thread, and the environment that nasflow gives its own workers: the same for every contestant."""

import os
import sys

import psutil

from nasflow.config.services.local import LocalServiceConfig
from nasflow.training_service.local.slots import slot_environments

PINNED = "NASFLOW_BENCHMARK_CORE"
"""The environment variable with the core for the benchmark and all its processes."""


def pin(module: str) -> None:
    """Start `python -m module` again, with the same arguments, pinned; return if this already is that process.

    The core is the least busy one of those this process may use. Libraries read the environment when they are
    imported, and threads inherit their cores when they are created, so this needs a new program.
    """
    if PINNED in os.environ:
        return
    core = "any"
    if hasattr(os, "sched_setaffinity"):
        busy = psutil.cpu_percent(0.5, percpu=True)
        core = str(min(os.sched_getaffinity(0), key=lambda number: busy[number]))
        os.sched_setaffinity(0, {int(core)})
    environment = slot_environments(LocalServiceConfig(slots=1))["cpu-0"]  # of one core, hence one thread
    environment |= {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", PINNED: core}
    os.execve(sys.executable, [sys.executable, "-m", module, *sys.argv[1:]], os.environ | environment)
