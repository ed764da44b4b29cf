"""Letting a few of many through: a search of 128 members makes more news a second than anyone can look at."""

import threading
import time
from collections.abc import Callable, Hashable
from itertools import islice
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class Newest(Generic[K, V]):
    """Lets values through: at most `burst` at once, and `rate` a second in the long run. Threads may share it.

    What has to wait is let through by a later call; of the values of one key only the newest waits. Keys take turns.
    """

    def __init__(self, rate: float, burst: int, clock: Callable[[], float] = time.monotonic):
        self._rate, self._burst, self._clock = rate, float(burst), clock
        self._allowed, self._at = self._burst, clock()
        self._waiting: dict[K, V] = {}  # the longest waiting first; a newer value takes the place of the older
        self._lock = threading.Lock()

    def put(self, key: K, value: V) -> list[V]:
        """What may pass now, `value` or what has waited longer."""
        with self._lock:
            now = self._clock()
            self._allowed = min(self._burst, self._allowed + self._rate * (now - self._at))
            self._at = now
            self._waiting[key] = value
            passing = list(islice(self._waiting, int(self._allowed)))
            self._allowed -= len(passing)
            return [self._waiting.pop(waiting) for waiting in passing]

    def drop(self, key: K) -> None:
        """Forget what waits of a key."""
        with self._lock:
            self._waiting.pop(key, None)
