"""Lets the threads of a session give their jobs to the training service in order; it starts them in that order."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from nasflow.study.records import Attempt, AttemptState

from .job_queue import JobQueue
from .running_rounds import RunningRounds

_LOOK = 0.5  # seconds between two looks whether the search is to stop


class JobTurns:
    """A JobQueue for threads, of which each gives one job.

    Args:
        rounds: the rounds that run.
        refuse_interrupted: raises an error if the search is to stop.
    """

    def __init__(self, rounds: RunningRounds, refuse_interrupted: Callable[[], None]):
        self._rounds = rounds
        self._refuse_interrupted = refuse_interrupted
        self._queue = JobQueue()
        self._ready: dict[int, threading.Event] = {}  # set when the thread that waits for it may give its job
        self._lock = threading.RLock()

    def set_slots(self, slots: int) -> None:
        """Set how many jobs run at a time."""
        with self._lock:
            self._queue.slots = slots

    def expect(self, round: int, cost: float, trial: int) -> None:
        """Let others wait for a job: `trial` is the number of its first member."""
        with self._lock:
            self._queue.expect(round, cost, trial)

    def forget(self, trial: int) -> None:
        """Let none wait for a job any more, because it was given, or will not be."""
        with self._lock:
            self._queue.forget(trial)
            self._ready.pop(trial, None)
            self._call_next()

    @contextmanager
    def job(self, attempt: Attempt) -> Iterator[None]:
        """Count an attempt's job from its turn to the end of this block."""
        try:
            yield
        finally:
            with self._lock:
                self._queue.end(attempt.id)
                self._call_next()

    @contextmanager
    def turn(self, attempt: Attempt) -> Iterator[None]:
        """Wait for the turn of an attempt's job, which is given to the service in this block.

        A job that runs already does not wait, nor does one that nobody expects because it starts again.
        """
        trial, turn = attempt.members[0], threading.Event()
        with self._lock:
            if self._queue.is_expected(trial) and attempt.state is not AttemptState.RUNNING:
                self._ready[trial] = turn
                self._call_next()
            else:
                turn.set()
        try:
            while not turn.wait(_LOOK):
                self._refuse_interrupted()
                with self._lock:
                    self._call_next()  # the oldest round may be another by now
            with self._lock:
                self._queue.begin(attempt.id)
            yield
        finally:
            self.forget(trial)

    def _call_next(self) -> None:
        first = self._queue.next(self._rounds.oldest)
        if first is not None and first in self._ready:
            self._ready[first].set()
