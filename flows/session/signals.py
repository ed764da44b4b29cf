"""What Ctrl-C and SIGTERM do to a search: it ends in good order."""

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interruptible(interrupted: Callable[[], bool], interrupt: Callable[[], None]) -> Iterator[None]:
    """Within it, Ctrl-C calls `interrupt`, which ends a search in good order, unless it is `interrupted` already.

    Then Ctrl-C raises KeyboardInterrupt: a second one ends the search at once.
    """

    def on_sigint(number: int, frame: FrameType | None) -> None:
        if interrupted():
            raise KeyboardInterrupt
        interrupt()

    with _handler(signal.SIGINT, on_sigint):
        yield


@contextmanager
def leave_on_sigterm() -> Iterator[None]:
    """Within it, SIGTERM raises SystemExit, so that sessions are closed; Prefect's own handler takes it in a flow run.

    When a flow run has ended by SIGTERM, Prefect sends it again for the handler of before, by default the end at once.
    """
    with _handler(signal.SIGTERM, lambda number, frame: sys.exit(128 + number)):
        yield


@contextmanager
def deaf_to_sigterm() -> Iterator[None]:
    """For what ends a session: within it, SIGTERM, which asks for that, does nothing. Prefect's handler would raise."""
    with _handler(signal.SIGTERM, lambda number, frame: None):
        yield


@contextmanager
def _handler(number: signal.Signals, handler: "signal._HANDLER") -> Iterator[None]:
    """Within it, a signal has this handler. Only the main thread can have any; in others nothing happens."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.signal(number, signal.SIG_DFL if before is None else before)
