"""Python's collector of cyclic garbage."""

import gc
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

    Afterwards they are collected as before. Otherwise the cycles that one job leaves would never be freed in a process
    that runs several.
    """
    own = gc.get_freeze_count() == 0  # else a parent process froze what it shares with its children
    gc.freeze()
    try:
        yield
    finally:
        if own:
            gc.unfreeze()
