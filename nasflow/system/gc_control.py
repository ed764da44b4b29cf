"""Python's collector of cyclic garbage."""

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the collector during work that makes many small objects and no cyclic garbage."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextmanager
def frozen() -> Iterator[None]:
    """Let collections skip the objects that exist now, because they outlive what runs inside.

    Afterwards they are collected as before, except in the children of a process that called `freeze_shared`. Otherwise
    the cycles that one job leaves would never be freed in a process that runs several.
    """
    gc.freeze()
    try:
        yield
    finally:
        if not _shared.is_set():
            gc.unfreeze()


def freeze_shared() -> None:
    """Free garbage, and keep the collectors of this process's children from copying the pages that they share."""
    gc.collect()
    gc.freeze()
    _shared.set()


_shared = threading.Event()
