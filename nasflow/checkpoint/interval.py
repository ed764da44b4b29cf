"""How long to train between two checkpoints, by what they cost and how often jobs fail."""

import math


class Interval:
    """The time between two checkpoints that loses the least to both checkpoints and failures.

    That is sqrt(2 C M) for checkpoints that cost C seconds each and a mean time M between failures (Young 1974, A first
    order approximation to the optimum checkpoint interval; Daly 2006, A higher order estimate of the optimum checkpoint
    interval for restart dumps).

    Args:
        between_failures: the mean time M in seconds.
    """

    def __init__(self, between_failures: float):
        self._between_failures = between_failures
        self._copying = self._writing = 0.0
        self._states = 0
        self._last: float | None = None

    def cost(self, states: int) -> float:
        """Return what a checkpoint of so many states costs, in seconds, by what those so far have; 0 without any."""
        return (self._copying + self._writing) / max(1, self._states) * states

    def seconds(self, states: int) -> float:
        """Return the interval for so many states; 0 before the first checkpoint."""
        return math.sqrt(2 * self.cost(states) * self._between_failures)

    def is_over(self, now: float, states: int) -> bool:
        """Whether the next checkpoint is due at a time of the monotonic clock."""
        return self._last is None or now - self._last >= self.seconds(states)

    def begin(self, now: float, *, again: bool) -> None:
        """Begin the first interval, or the next one."""
        if again or self._last is None:
            self._last = now

    def copied(self, seconds: float, states: int) -> None:
        """Count states for which training has waited so long."""
        self._copying += seconds
        self._states += states

    def written(self, seconds: float) -> None:
        """Add the time that the processor has spent on writing in the background. Only one thread may call this."""
        self._writing += seconds
