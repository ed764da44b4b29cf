"""What a search proposes: its strategy, asked and told in the order of rounds."""

import threading

from nasflow.space.architecture import Architecture
from nasflow.strategy.base import Strategy, as_proposals
from nasflow.study.base import FINISHED
from nasflow.study.study import Study


class Proposals:
    """Asks a strategy for round after round. Round n knows the results of the rounds up to n - 1 - `ahead`, no others.

    Proposals depend neither on rounds that ended early nor on how often the search was killed: rounds of an earlier
    start are repeated from the record, each with only the results that it knew then. Thread-safe.

    Args:
        strategy: a new one.
        study: keeps the record.
        ahead: `budget.rounds_ahead`.
    """

    def __init__(self, strategy: Strategy, study: Study, ahead: int):
        self._strategy = strategy
        self._study = study
        self._ahead = ahead
        self._asked = 0  # rounds that the strategy has proposed
        self._told = 0  # rounds whose results it knows
        self._lock = threading.Lock()

    def ask(self, number: int, count: int) -> list[Architecture]:
        """Return up to `count` architectures for a round. All rounds that it is to know must have ended.

        Raises:
            ConfigError: the strategy is a user's own, and returned something else.
        """
        with self._lock:
            if self._told == 0 and self._ahead == 0:
                self._strategy.resume(self._study.history())
                self._told = number
            for earlier in range(self._asked, number if self._ahead else 0):
                self._tell_up_to(earlier - 1 - self._ahead)
                self._strategy.proposed(self._study.trials(round=earlier))
                self._asked = earlier + 1
            self._tell_up_to(number - 1 - self._ahead)
            asked = as_proposals(self._strategy.ask(count), count)
            self._asked = number + 1
            return asked

    def ended(self, number: int) -> None:
        """Take the results of a round that has ended, unless one is still to be proposed that must not know them."""
        with self._lock:
            if number == self._told and number + self._ahead < self._asked:
                self._tell_up_to(number)

    def _tell_up_to(self, number: int) -> None:
        while self._told <= number:
            self._strategy.tell(self._study.trials(FINISHED, round=self._told))
            self._told += 1
