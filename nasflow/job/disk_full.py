"""Waiting for room on a disk that is full."""

import errno
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

SECONDS = 300.0
"""How long what must not be lost waits for room."""

POLL = 1.0
_FULL = {errno.ENOSPC, errno.EDQUOT}


def is_full(error: BaseException) -> bool:
    """Whether this is a disk's, or a user's share of it, having no room left."""
    return isinstance(error, OSError) and error.errno in _FULL


def wait_for_room(write: Callable[[], T]) -> T:
    """What `write` gives, called again and again as long as the disk is full, for `SECONDS` at most.

    Raises:
        OSError: it is full still, or there is another reason.
    """
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return write()
        except OSError as error:
            if not is_full(error) or time.monotonic() > deadline:
                raise
        time.sleep(POLL)
