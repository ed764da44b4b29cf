"""Calls in a background thread, in order."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Makes calls in a background thread, one after the other in the order in which they were submitted.

    If a call raises, the calls submitted after it are not made, and the next `do` or `wait` raises the exception.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._calls: list[Future[None]] = []
        self._broken = False

    def do(self, call: Callable[[], None]) -> None:
        """Submit a call and return at once."""
        self._look()
        self._calls.append(self._executor.submit(self._make, call))

    def wait(self) -> None:
        """Wait until all calls are made."""
        for made in self._calls:
            made.result()
        self._calls.clear()

    def close(self) -> None:
        """End the thread after it has made all calls."""
        self._executor.shutdown()

    def _look(self) -> None:
        while self._calls and self._calls[0].done():
            self._calls.pop(0).result()

    def _make(self, call: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            call()
        except BaseException:
            self._broken = True
            raise
