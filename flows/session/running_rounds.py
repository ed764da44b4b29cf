"""Which rounds of a search run in this process. Several do with `budget.rounds_ahead`."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class RunningRounds:
    """The rounds that run: they are planned one after the other, and end one after the other. Thread-safe."""

    def __init__(self) -> None:
        self._overlap = False
        self._running: dict[int, bool] = {}  # whether its batches are planned
        self._changed = threading.Condition()

    @contextmanager
    def running(self, number: int) -> Iterator[None]:
        """Let a round run in this block. After an error, rounds that overlap it still wait, unless it has `ended`."""
        with self._changed:
            self._running[number] = False
        failed = True
        try:
            yield
            failed = False
        finally:
            with self._changed:
                if not (failed and self._overlap):
                    del self._running[number]
                self._changed.notify_all()

    def let_overlap(self) -> None:
        """Expect rounds that overlap, of which none runs yet: their search stops the others when one has an error."""
        with self._changed:
            self._overlap = True
            self._running.clear()

    def planned(self, number: int) -> None:
        """Note that a round has its trials, and its batches are to be submitted: the next round may begin."""
        with self._changed:
            self._running[number] = True
            self._changed.notify_all()

    def ended(self, number: int) -> None:
        """Note that the end of a round is on record, whatever error it had after that: the next round may end."""
        with self._changed:
            self._running.pop(number, None)
            self._changed.notify_all()

    def is_planned(self, number: int) -> bool:
        """Whether a round runs and its batches are planned."""
        with self._changed:
            return self._running.get(number, False)

    def wait(self, seconds: float) -> None:
        """Wait for a change, at most so long."""
        with self._changed:
            self._changed.wait(seconds)

    @property
    def oldest(self) -> int | None:
        """The number of the first round that runs; None if none does."""
        with self._changed:
            return min(self._running, default=None)
