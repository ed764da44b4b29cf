"""A command whose event loop can't start ends with a sentence instead of waiting for it."""

import subprocess
import sys

PROGRAM = """
import os, resource
from nasflow.flows.server.lost_threads import end_without_event_loops
from prefect._internal.concurrency.threads import get_global_loop
end_without_event_loops()
most = max(map(int, os.listdir("/proc/self/fd"))) + 1
resource.setrlimit(resource.RLIMIT_NOFILE, (most - 1, most - 1))
get_global_loop()
"""


def test_too_many_open_files() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("error: Prefect's event loop has ended: OSError: [Errno 24] Too many open files; mend this")
