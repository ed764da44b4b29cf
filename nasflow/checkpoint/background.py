"""Work beside the main thread, in order."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """Makes calls in a thread of its own, one after the other in the order they were given.

    What one raises is raised by the next `do` or `wait`, and those given after it are not made.
    """

    def __init__(self, name: str) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=name)
        self._calls: list[Future[None]] = []
        self._broken = False

    def do(self, call: Callable[[], None]) -> None:
        """Make a call, some time after this returns."""
        self._look()
        self._calls.append(self._executor.submit(self._make, call))

    def wait(self) -> None:
        """Until all calls are made."""
        for made in self._calls:
            made.result()
        self._calls.clear()

    def close(self) -> None:
        """End the thread, once it has made the calls."""
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
