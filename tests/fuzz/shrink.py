"""Finds a smaller input with the same finding."""

import time

from tests.fuzz.target import Target
from tests.fuzz.watch import Outcome, read
from tests.trust.apart import EndedError, RaisedError, each


def judge(target: Target, data: bytes) -> Outcome:
    """Return what becomes of an input in a process of its own, which it may end."""
    [(_, found)] = each(lambda one: read(target, one), [data])
    if isinstance(found, EndedError):
        return Outcome(finding=str(found), kind=str(found))
    if isinstance(found, RaisedError):
        raise found
    return found


def shrink(target: Target, data: bytes, kind: str, seconds: float = 20.0) -> bytes:
    """Return an input with the same kind of finding: no part of it can be left out, or time is up."""
    end, size = time.monotonic() + seconds, max(1, len(data) // 2)
    while size:
        place, shorter = 0, False
        while place < len(data) and time.monotonic() < end:
            smaller = data[:place] + data[place + size :]
            if judge(target, smaller).kind == kind:
                data, shorter = smaller, True
            else:
                place += size
        if time.monotonic() >= end:
            break
        size = size if shorter and size > 1 else size // 2
    return data
