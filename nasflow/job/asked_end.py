"""Asks a job that runs in a thread of its controller to end. A job in a separate process gets SIGTERM instead."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_asked: ContextVar[Callable[[], bool]] = ContextVar("asked", default=lambda: False)


@contextmanager
def ended_when(asked: Callable[[], bool]) -> Iterator[None]:
    """A job that runs in this block, in this thread, is asked to end once `asked` returns true.

    It is asked as well once the condition of a block around this one is true.
    """
    around = _asked.get()
    token = _asked.set(lambda: around() or asked())
    try:
        yield
    finally:
        _asked.reset(token)


def asked_here() -> Callable[[], bool]:
    """Return a function that says whether a job in this thread is asked to end. It may be called from any thread."""
    return _asked.get()
