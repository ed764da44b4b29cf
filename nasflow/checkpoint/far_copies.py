"""Copies of trials' checkpoints at a URL, made in a thread while training goes on."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from nasflow.checkpoint.bundle import Snapshot
from nasflow.checkpoint.url_store import UrlStore

SILENCE = 300.0
"""After how many seconds without an answer a storage is reported as one that fails."""
_SHORTEST, _LONGEST = 1.0, 60.0  # seconds between two tries after an error
_POLL = 1.0
_ENOUGH = 3  # failures in a row, after which what is left at the end is given up


class Copy(NamedTuple):
    """A state to copy.

    Attributes:
        epoch: the number of epochs after which it was taken.
        read: returns a snapshot of it alone, or None if a newer one has replaced it; called in the thread.
        ranking: as in `UrlStore.write`.
    """

    epoch: int
    read: Callable[[], Snapshot | None]
    ranking: Sequence[int]


class FarCopies:
    """Copies the checkpoints of trials to a URL in a thread, so that training never waits for the storage.

    If the storage is slower than training, only the newest state of each trial is copied. What fails is tried again,
    after a pause that grows with each failure.

    Args:
        store: returns the store of a trial at the URL. It may raise anything, as the storage may.
        note: called in any thread with the error when a copy fails or takes long, and with None after one that has
            succeeded.
    """

    def __init__(self, store: Callable[[int], UrlStore], note: Callable[[BaseException | None], None]):
        self._store, self._note = store, note
        self._changed = threading.Condition()
        self._due: dict[int, Copy] = {}
        self._running: int | None = None  # a trial
        self._began = 0.0
        self._tries = self._failures = 0
        self._thread: threading.Thread | None = None
        self._ends = self._is_over = False

    def put(self, trial: int, copy: Copy) -> None:
        """Copy a state of a trial soon, in place of an earlier one that is still waiting."""
        with self._changed:
            self._due[trial] = copy
            if self._thread is None:
                # a daemon, because nothing else ends a call to a storage that does not answer
                self._thread = threading.Thread(target=self._run, name="far-copies", daemon=True)
                self._thread.start()
            self._changed.notify_all()
            silent = self._running is not None and time.monotonic() - self._began > SILENCE
        if silent:
            self._note(TimeoutError(f"no answer for {SILENCE:.3g} s"))

    def finish(self, seconds: float | None = None, waited: Callable[[float], None] = lambda _: None) -> None:
        """Make all copies and end the thread. Give up when several fail, or when none is made for a while.

        Args:
            seconds: for how long; None for `SILENCE`.
            waited: called with the seconds that have passed, about once a second.
        """
        seconds = SILENCE if seconds is None else seconds
        with self._changed:
            self._ends = True
            self._changed.notify_all()
            tries, deadline = self._tries, time.monotonic() + seconds
            while not self._is_over and (self._due or self._running is not None):
                if self._tries > tries:
                    tries, deadline = self._tries, time.monotonic() + seconds
                if time.monotonic() > deadline:
                    self._is_over = True
                began = time.monotonic()
                self._changed.wait(min(_POLL, seconds))
                waited(time.monotonic() - began)
        if self._is_over:
            self._note(TimeoutError(f"no answer for {seconds:.3g} s"))

    def _run(self) -> None:
        while (found := self._next()) is not None:
            trial, copy = found
            error: BaseException | None = None
            try:
                snapshot = copy.read()
                if snapshot is not None:
                    self._store(trial).write(copy.epoch, snapshot, copy.ranking)
            except Exception as raised:  # a storage may raise anything
                error = raised
            if self._is_over:
                return
            self._note(error)
            with self._changed:
                self._running = None
                self._tries += 1
                self._failures = 0 if error is None else self._failures + 1
                if self._ends and self._failures >= _ENOUGH:
                    self._due.clear()
                elif error is not None:
                    self._due.setdefault(trial, copy)
                self._changed.notify_all()

    def _next(self) -> tuple[int, Copy] | None:
        """Wait for the next state to copy; None at the end."""
        with self._changed:
            if self._failures:
                # what is left at the end is soon tried again
                pause = min(_SHORTEST * 2 ** (self._failures - 1), _LONGEST)
                self._changed.wait_for(lambda: self._ends, pause)
                if self._ends:
                    self._changed.wait(_SHORTEST)
            self._changed.wait_for(lambda: self._due or self._ends)
            if not self._due:
                return None
            self._running, self._began = next(iter(self._due)), time.monotonic()
            return self._running, self._due.pop(self._running)
