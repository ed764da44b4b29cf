"""A rate limit for events: a search with 128 members produces more per second than anyone can read."""

import threading
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(Generic[K, V]):
    """Rate limiter that passes at most `burst` values at once and `rate` per second on average. Thread-safe.

    Values that have to wait are passed by a later call, those of the longest-waiting key first. Of each key, only the
    newest value waits.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic):
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._allowed, self._at = self._burst, clock()
        self._waiting: dict[K, V] = {}  # longest-waiting first; a newer value keeps the older one's place
        self._lock = threading.Lock()

    def put(self, key: K, value: V) -> list[V]:
        """Add a value and return the values that may pass now."""
        with self._lock:
            now = self._clock()
            self._allowed = min(self._burst, self._allowed + self._rate * (now - self._at))
            self._at = now
            self._waiting[key] = value
            passing = list(islice(self._waiting, int(self._allowed)))
            self._allowed -= len(passing)
            return [self._waiting.pop(waiting) for waiting in passing]

    def drop(self, key: K) -> None:
        """Discard the waiting value of a key, if there is one."""
        with self._lock:
            self._waiting.pop(key, None)
