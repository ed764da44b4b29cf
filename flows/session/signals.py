"""Ctrl-C and SIGTERM: both end a search in good order."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible(interrupted: Callable[[], bool], interrupt: Callable[[], None]) -> Iterator[None]:
    """Make Ctrl-C call `interrupt` in this block, which ends a search in good order.

    If the search is `interrupted` already, Ctrl-C raises KeyboardInterrupt, so a second one ends the search at once.
    """

    def on_sigint(number: int, frame: FrameType | None) -> None:
        if interrupted():
            raise KeyboardInterrupt
        interrupt()

    with _handler(signal.SIGINT, on_sigint):
        yield


@contextmanager
def leave_on_sigterm() -> Iterator[None]:
    """Make SIGTERM raise SystemExit in this block, so that sessions are closed. In a flow run, Prefect's handler runs.

    After SIGTERM has ended a flow run, Prefect sends it again to the previous handler. The default one would end the
    process at once.
    """
    with _handler(signal.SIGTERM, lambda number, frame: sys.exit(128 + number)):
        yield


@contextmanager
def deaf_to_sigterm() -> Iterator[None]:
    """Ignore SIGTERM in this block, which ends a session. Prefect's handler would raise in the middle of that."""
    with _handler(signal.SIGTERM, lambda number, frame: None):
        yield


@contextmanager
def _handler(number: signal.Signals, handler: "signal._HANDLER") -> Iterator[None]:
    """Set the handler of a signal in this block. Does nothing outside the main thread, where handlers can't be set."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL if before is None else before)
