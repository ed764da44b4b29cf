"""Python runs this when the soak test's server starts: a pool's first task starts all of the pool's threads.

Otherwise a pool starts a thread whenever a task happens to find none idle, up to an hour later: it looks like a leak.
"""

import threading
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

_submit = ThreadPoolExecutor.submit


def _submit_to_all(self: ThreadPoolExecutor, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
    if not self._threads:
        all_started = threading.Barrier(self._max_workers)
        for _ in range(self._max_workers):
            _submit(self, all_started.wait)
    return _submit(self, function, *args, **kwargs)


ThreadPoolExecutor.submit = _submit_to_all  # type: ignore[assignment, method-assign]
