"""Levels of loggers for a while."""

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_before: dict[str, list[int]] = {}  # of loggers in such blocks: their level outside, and the number of blocks


@contextmanager
def log_level(name: str, level: int) -> Iterator[None]:
    """Give a logger this level within this block. The end of the last block, in any thread, restores the one before."""
    logger = logging.getLogger(name)
    with _lock:
        _before.setdefault(name, [logger.level, 0])[1] += 1
        logger.setLevel(level)
    try:
        yield
    finally:
        with _lock:
            outside = _before[name]
            outside[1] -= 1
            if not outside[1]:
                logger.setLevel(outside[0])
                del _before[name]
