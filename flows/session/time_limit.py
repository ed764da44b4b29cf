"""Stops a search when the hours of its budget are over."""

import math
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import copy_context

from prefect import get_run_logger

from .session import SearchSession

_LOOK = 0.5  # seconds between two looks at the clock


@contextmanager
def time_limited(session: SearchSession) -> Iterator[None]:
    """End the jobs of this block once `budget.hours` are over, if `budget.on_timeout` is `stop`. Pauses do not count.

    If they are over already, no round is left, and there is nothing to end.
    """
    budget = session.config.budget
    left = math.inf if budget.hours is None else 3600 * budget.hours - session.study.seconds_spent()
    if not 0 < left < math.inf or budget.on_timeout == "finish":
        yield
        return
    ended = threading.Event()
    log = get_run_logger()

    def watch() -> None:
        nonlocal left
        before = time.monotonic()
        while left > 0 and not ended.wait(min(_LOOK, left)):
            now = time.monotonic()
            left -= 0 if session.stop.is_set() else now - before
            before = now
        if not ended.is_set() and not session.stop.is_set():
            log.info("study '%s': budget.hours is over, so its jobs are ended", session.config.name)
            session.end_in_time()

    watcher = threading.Thread(target=copy_context().run, args=(watch,), name="nasflow-time-limit", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
