"""A trial that other processes train, which the job's process follows."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from nasflow.job import activity


class FollowedTrial(ABC):
    """The counterpart of a `Member`, with the same attributes; its processes are started when an epoch is asked for.

    Attributes:
        is_ahead: whether its processes have later epochs than that on record, so that it can't end with this one.
    """

    def __init__(self, number: int, parameters: int, epochs: int):
        self.number, self.parameters, self.epochs = number, parameters, epochs
        self.finished_epochs = 0
        self.history: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self.finished = self.stopped_early = self.pruned = self.is_ahead = False

    @abstractmethod
    def state_to_save(self) -> dict[str, Any]:
        """Return all that is needed to continue."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""

    @abstractmethod
    def train_epoch(self, look_up: Callable[[], None]) -> dict[str, float] | None:
        """Return the metrics of the next epoch; None if there is none. `look_up` is called while it waits."""

    @abstractmethod
    def end_epoch(self, metrics: dict[str, float] | None) -> None:
        """Take the metrics of an epoch, or that there are no further ones."""

    @abstractmethod
    def go_on(self) -> None:
        """Let its processes go on after an epoch that is on record, or end."""

    @abstractmethod
    def close(self) -> None:
        """End its processes."""

    def pass_over(self) -> None:
        """Note that an epoch on record was trained again: for `limits`, the next one begins here."""
        activity.restart_epoch()  # its length says nothing of later ones: a program may only report it again
        with activity.running(self.number):
            pass

    def load_record(self, state: dict[str, Any]) -> None:
        """Take the part of a saved state that every trial has."""
        self.finished_epochs, self.history, self.seconds = state["epoch"], state["history"], state["seconds"]
        self.finished, self.stopped_early, self.pruned = state["finished"], state["stopped_early"], state["pruned"]

    def stop(self) -> None:
        """End training after this epoch."""
        self.finished = self.stopped_early = True

    def prune(self) -> None:
        """End training after this epoch, because other trials do better."""
        self.stop()
        self.pruned = True
