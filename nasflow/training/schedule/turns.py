"""Schedules which trials train in each epoch of a job, which wait for a place, and which are stopped.

The schedule depends only on the members' histories. A job that resumes therefore replays it from the start: an epoch
that is in a member's checkpoint is looked up instead of trained, and leads to the same decisions. So it does not matter
where a job was interrupted, or how far back its checkpoints reach.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from nasflow.training.schedule.pruners import Histories, Metrics, Pruner
from nasflow.training.schedule.repeats import common_history, mean_and_spread, members_of


@dataclass(frozen=True)
class Past:
    """The recorded history of a trial.

    Attributes:
        history: metrics by epoch, the first epoch first.
        parameters: the number of its model's parameters.
        ended: whether it ended with the last of these epochs.
        failed: whether it failed in the epoch after these; it is not tried again here.
    """

    history: Sequence[Metrics]
    parameters: int
    ended: bool = False
    failed: bool = False


class Roster:
    """Schedules a job in turns; in a turn, members that have finished the same number of epochs train the next one.

    Trials take the places in the given order; one that leaves in a turn frees its place at the end of the turn. While
    trials wait for a place, the largest group of members at one epoch has the turn, so that a newcomer waits for others
    instead of training alone. Once none waits, the members furthest behind have it, so that all come together.

    Where a trial has several members, these are what has places, turns and histories here, each under its own number
    (`repeats.members_of`). They enter together, none goes on before the others have ended the epoch, and the pruner
    sees the trials, with the mean of their members.

    Args:
        trials: all that train in the job, or have trained in it before; the numbers of their members.
        places: how many trials may be in the job at a time; None for all.
        pruner: decides which of those that have trained in a turn stop.
        past: the recorded histories of trials that have begun before.
        repeats: the members of each trial.

    Attributes:
        epoch: epochs finished by the trials of this turn.
        turn: the trials that train now.
        shared: whether several trials train in the job, or have trained in it before.
    """

    def __init__(
        self,
        trials: Sequence[int],
        places: int | None = None,
        pruner: Pruner | None = None,
        past: Mapping[int, Past] | None = None,
        repeats: int = 1,
    ):
        self._waiting = deque(trials)
        self._repeats = repeats
        self._places = len(trials) if places is None else places * repeats
        self._pruner = pruner
        self._past = past or {}
        self._finished: dict[int, int] = {}  # epochs, by trial that has a place
        self._histories: dict[int, list[Metrics]] = {}
        self._companies: dict[int, tuple[int, ...]] = {}
        self._due: list[int] = []
        self.epoch = 0
        self.turn: list[int] = []
        self.shared = len(trials) > repeats

    def open_turn(self) -> bool:
        """Go on to the next turn in which a trial trains. Return False if there is none: the job has ended."""
        while True:
            while self._waiting and len(self._finished) + self._repeats <= self._places:
                for _ in range(self._repeats):
                    trial = self._waiting.popleft()
                    self._finished[trial], self._histories[trial] = 0, []
            if not self._finished:
                self.turn = []
                return False
            ready = self._ready()
            standing = Counter(ready.values())
            self.epoch = min(standing, key=lambda epoch: (-standing[epoch] if self._waiting else 0, epoch))
            self._due = [trial for trial, finished in ready.items() if finished == self.epoch]
            new = tuple(trial for trial in self._due if trial not in self._companies)
            self._companies.update(dict.fromkeys(new, new))
            self.turn = [trial for trial in self._due if self._can_train(trial) and not self._is_on_record(trial)]
            if self.turn:
                return True
            self.close_turn()

    def trial_of(self, number: int) -> int:
        """Return the trial of a member."""
        return number // self._repeats

    def company(self, trial: int) -> tuple[int, ...]:
        """Return the trials that had their first turn together with this one, including those that have left."""
        return self._companies[trial]

    def take(self, trial: int, metrics: Metrics, parameters: int, *, judged: bool = True) -> None:
        """Record the metrics of a trial that trained in this turn. Raises TrialError if the pruner misses one.

        Args:
            judged: whether the pruner may compare them; in an epoch without validation it can't.
        """
        if self._pruner is not None and judged:
            logged = metrics if self._repeats == 1 else mean_and_spread([metrics])
            self._pruner.check({"parameters": float(parameters), **logged})
        self._record(trial, metrics, parameters)

    def close_turn(self, candidates: Sequence[int] = ()) -> set[int]:
        """End the turn. Return which of `candidates`, trials that trained in it and have not ended, are to stop."""
        for trial in self._due:
            if trial in self.turn or trial not in self._finished:
                continue
            past = self._past[trial]
            if self._is_on_record(trial):
                self._record(trial, past.history[self.epoch], past.parameters)
                ends = past.ended and len(past.history) == self._finished[trial]
            else:
                ends = True  # here it failed
            if ends:
                self.leave(trial)
        self._due, self.turn = [], []
        if self._pruner is None or not candidates:
            return set()
        if self._repeats == 1:
            return self._pruner.stop(candidates, self._histories)
        stopped = self._pruner.stop({number // self._repeats for number in candidates}, self._common_histories())
        return {number for number in candidates if number // self._repeats in stopped}

    def rewind(self, trial: int, epoch: int) -> None:
        """Take a trial back to the end of `epoch` epochs; it trains those after it again."""
        self._finished[trial] = epoch
        del self._histories[trial][epoch:]

    def leave(self, trial: int) -> None:
        """Free the place of a trial that has ended or failed."""
        self._finished.pop(trial, None)

    def _ready(self) -> dict[int, int]:
        """The finished epochs of those that do not wait for other members of their trial."""
        if self._repeats == 1:
            return self._finished
        least: dict[int, int] = {}
        for number, finished in self._finished.items():
            trial = number // self._repeats
            least[trial] = min(least.get(trial, finished), finished)
        return {number: done for number, done in self._finished.items() if done == least[number // self._repeats]}

    def _common_histories(self) -> Histories:
        """The histories of trials, up to the last epoch that all of their members have ended."""
        found = {}
        for trial in {number // self._repeats for number in self._histories}:
            numbers = members_of(trial, self._repeats)
            histories = [self._histories[number] for number in numbers]
            here = [self._finished[number] for number in numbers if number in self._finished]
            epochs = min(here) if here else max(map(len, histories))
            found[trial] = common_history(histories, range(epochs)) if all(histories) else []
        return found

    def _can_train(self, trial: int) -> bool:
        past = self._past.get(trial)
        return past is None or not (past.ended or past.failed)

    def _is_on_record(self, trial: int) -> bool:
        past = self._past.get(trial)
        return past is not None and len(past.history) > self.epoch

    def _record(self, trial: int, metrics: Metrics, parameters: int) -> None:
        self._histories[trial].append({"parameters": float(parameters), **metrics})
        self._finished[trial] += 1
