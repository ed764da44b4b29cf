"""Waiting for room on a disk that is full."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from nasflow.job import activity

T = TypeVar("T")

SECONDS = 300.0
"""How long a write that must not be lost waits for room."""

POLL = 1.0
_FULL = {errno.ENOSPC, errno.EDQUOT}


def is_full(error: BaseException) -> bool:
    """Whether the error means that the disk, or the user's quota, is full."""
    return isinstance(error, OSError) and error.errno in _FULL


def wait_for_room(write: Callable[[], T]) -> T:
    """Return what `write` returns, after repeating it while the disk is full, for at most `SECONDS`.

    Raises:
        OSError: the disk is still full, or writing failed for another reason.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return write()
        except OSError as error:
            if not is_full(error) or time.monotonic() > deadline:
                raise
        time.sleep(POLL)
        activity.excuse(POLL)
