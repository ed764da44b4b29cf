"""Who of a job trains when: which trials have a place, whose turn an epoch is, and who is stopped.

The whole course of a job follows from its members' histories. A job that resumes therefore goes through its course
again from the start: an epoch that a member's checkpoint has is looked up instead of trained, and what was decided
after it stands. So it does not matter where a job was interrupted, or how far back its checkpoints reach.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nasflow.training.schedule.pruners import Metrics, Pruner


@dataclass(frozen=True)
class Past:
    """What is on record of a trial.

    Attributes:
        history: metrics by epoch, the first epoch first.
        parameters: of its model.
        ended: it ended with the last of these epochs.
        failed: it failed in the epoch after these, and is not tried again here.
    """

    history: Sequence[Metrics]
    parameters: int
    ended: bool = False
    failed: bool = False


class Roster:
    """The course of a job, turn by turn; in a turn some members that stand at the same epoch train it together.

    Trials take places in the given order, as many as there are; one that leaves in a turn makes room at its end. The
    turn is that of the epoch at which most members stand while trials still wait for a place, so that a newcomer
    waits for company instead of training alone; of those furthest behind once none waits, so that all come together.

    Args:
        trials: all that train in the job, or have trained in it before.
        places: how many may be inside at a time; None for all.
        pruner: judges those that have trained in a turn.
        past: what is on record of trials that have begun before.

    Attributes:
        epoch: epochs finished by those whose turn it is.
        turn: the trials that are to train now.
    """

    def __init__(
        self,
        trials: Sequence[int],
        places: int | None = None,
        pruner: Pruner | None = None,
        past: Mapping[int, Past] | None = None,
    ):
        self._waiting = deque(trials)
        self._places = len(trials) if places is None else places
        self._pruner = pruner
        self._past = past or {}
        self._finished: dict[int, int] = {}  # epochs, by trial that is inside
        self._histories: dict[int, list[Metrics]] = {}
        self._companies: dict[int, tuple[int, ...]] = {}
        self._due: list[int] = []
        self.epoch = 0
        self.turn: list[int] = []

    def open_turn(self) -> bool:
        """Go on to the next turn in which there is something to train. False if there is none: the job has ended."""
        while True:
            while self._waiting and len(self._finished) < self._places:
                trial = self._waiting.popleft()
                self._finished[trial], self._histories[trial] = 0, []
            if not self._finished:
                self.turn = []
                return False
            standing = Counter(self._finished.values())
            self.epoch = min(standing, key=lambda epoch: (-standing[epoch] if self._waiting else 0, epoch))
            self._due = [trial for trial, finished in self._finished.items() if finished == self.epoch]
            new = tuple(trial for trial in self._due if trial not in self._companies)
            self._companies.update(dict.fromkeys(new, new))
            self.turn = [trial for trial in self._due if self._can_train(trial) and not self._is_on_record(trial)]
            if self.turn:
                return True
            self.close_turn()

    def company(self, trial: int) -> tuple[int, ...]:
        """Those who had their first turn together with a trial, whether they are still there or not."""
        return self._companies[trial]

    def take(self, trial: int, metrics: Metrics, parameters: int) -> None:
        """The metrics of a trial that has trained in this turn. Raises TrialError if they lack what is judged."""
        if self._pruner is not None:
            self._pruner.check({**metrics, "parameters": parameters})
        self._record(trial, metrics, parameters)

    def close_turn(self, candidates: Sequence[int] = ()) -> set[int]:
        """Those of `candidates`, which have trained in this turn and are not at their end, that are to stop here."""
        for trial in self._due:
            if trial in self.turn or trial not in self._finished:
                continue
            past = self._past[trial]
            if self._is_on_record(trial):
                self._record(trial, past.history[self.epoch], past.parameters)
                ends = past.ended and len(past.history) == self._finished[trial]
            else:
                ends = True  # where it failed
            if ends:
                self.leave(trial)
        self._due, self.turn = [], []
        return self._pruner.stop(candidates, self._histories) if self._pruner and candidates else set()

    def rewind(self, trial: int, epoch: int) -> None:
        """A trial has gone back to where it stood after `epoch` epochs, and trains those after it again."""
        self._finished[trial] = epoch
        del self._histories[trial][epoch:]

    def leave(self, trial: int) -> None:
        """A trial has ended, or failed: it trains no more."""
        self._finished.pop(trial, None)

    def _can_train(self, trial: int) -> bool:
        past = self._past.get(trial)
        return past is None or not (past.ended or past.failed)

    def _is_on_record(self, trial: int) -> bool:
        past = self._past.get(trial)
        return past is not None and len(past.history) > self.epoch

    def _record(self, trial: int, metrics: Metrics, parameters: int) -> None:
        self._histories[trial].append({**metrics, "parameters": float(parameters)})
        self._finished[trial] += 1
