"""Python runs this when the soak test's Prefect server starts: asyncio's pool of threads is filled by its first task.

Otherwise the pool starts a thread whenever a task happens to find none idle, up to an hour later: it looks like a leak.
"""

import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_submit = ThreadPoolExecutor.submit


def _submit_to_all(self: ThreadPoolExecutor, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
    if self._thread_name_prefix == "asyncio" and not self._threads:
        all_started = threading.Barrier(self._max_workers)
        for _ in range(self._max_workers):
            _submit(self, all_started.wait)
    return _submit(self, function, *args, **kwargs)


if "server" in sys.orig_argv:  # what uses the server gets the same environment, and is to stay as it is
    ThreadPoolExecutor.submit = _submit_to_all  # type: ignore[assignment, method-assign]
