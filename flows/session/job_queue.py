"""Which job of a search is given to its training service next.

Jobs wait here only with `budget.rounds_ahead`. Otherwise all are given at once, and wait for slots in the service.
"""

_AHEAD = 8  # of so many slots, one has a further job waiting in the service, so that none waits for the controller


class JobQueue:
    """Gives jobs in the order of their rounds, and those of a round the most expensive first.

    Jobs of the oldest round that runs are given at once. One of a later round waits while there are enough jobs for all
    slots, so that a job of an earlier round, such as the retry of a trial, gets the next slot that is free.

    Attributes:
        slots: how many jobs the service runs at a time; None if no job is to wait for a slot here.
    """

    def __init__(self) -> None:
        self.slots: int | None = None
        self._expected: dict[int, tuple[int, float, int]] = {}  # sort keys of jobs that are still to be given
        self._given: set[int] = set()

    def expect(self, round: int, cost: float, trial: int) -> None:
        """Add a job that is to be given: `trial` is the number of its first member."""
        self._expected[trial] = (round, -cost, trial)

    def is_expected(self, trial: int) -> bool:
        """Whether a job with this first member is still to be given."""
        return trial in self._expected

    def forget(self, trial: int) -> None:
        """Remove a job, which was given or will not be."""
        self._expected.pop(trial, None)

    def begin(self, id: int) -> None:
        """Count a job that was given, until its `end`."""
        self._given.add(id)

    def end(self, id: int) -> None:
        """Count a job that was given no more."""
        self._given.discard(id)

    def next(self, oldest: int | None) -> int | None:
        """Return the job to be given now, by its first member; None if there is none, or the first one has to wait.

        Args:
            oldest: the oldest round that runs, None if none does.
        """
        first = min(self._expected.values(), default=None)
        if first is None:
            return None
        round, _, trial = first
        at_once = self.slots is None or oldest is None or round <= oldest
        return trial if at_once or len(self._given) < self._most else None

    @property
    def _most(self) -> int:
        """How many jobs may be given before one of a later round has to wait."""
        return 0 if self.slots is None else self.slots + -(-self.slots // _AHEAD)
