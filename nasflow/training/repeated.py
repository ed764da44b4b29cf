"""A trial that several members train, each with a seed of its own: it is saved and reported as one."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from nasflow.job.spec import MemberSpec
from nasflow.json_metrics import finite_metrics
from nasflow.seeds import derive_seed
from nasflow.training.member.member import Member
from nasflow.training.member.metrics.reporting import record_of
from nasflow.training.member.trained import PARTS, trained_state
from nasflow.training.schedule.repeats import common_history

_FIRST = "module"  # of the first member, beside the parts: what is exported and tested


def seeded(spec: MemberSpec, repeat: int) -> MemberSpec:
    """Return the spec of one member of a trial: the first has the trial's own seed."""
    return spec if repeat == 0 else spec.model_copy(update={"seed": derive_seed(spec.seed, "repeat", repeat)})


def parts_of(saved: Mapping[str, Any], repeats: int) -> list[dict[str, Any]]:
    """Return the states of a trial's members from the trial's own; this itself if it has one member."""
    if repeats == 1:
        return [dict(saved)]
    first, *others = saved[PARTS]
    return [{**first, _FIRST: saved[_FIRST]} if _FIRST in saved else first, *others]


def first_metrics(trial_folder: Path) -> dict[str, float]:
    """Return the last metrics of a trial's first member, whose weights are exported, from the last checkpoint.

    Errors are those of `trained_state`.
    """
    state = trained_state(trial_folder)
    return finite_metrics(state[PARTS][0]["history"][-1]) | {"parameters": float(state["parameters"])}


class RepeatedTrial:
    """The members of one trial, with the attributes by which a `Member` is saved and reported.

    A member that has ended before the others, by its own early stopping, keeps its last metrics and its weights.

    Args:
        number: the trial's.
        repeats: how many members it has.
    """

    def __init__(self, number: int, repeats: int):
        self.number = number
        self._repeats = repeats
        self._members: dict[int, Member] = {}  # by repeat
        self._ended: dict[int, dict[str, Any]] = {}  # states
        self._history: list[dict[str, float]] = []

    def add(self, member: Member) -> None:
        """Take a member that has entered the job."""
        self._history = []
        self._members[member.number % self._repeats] = member

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Take the states of the members that have ended; they do not enter the job again."""
        for repeat, part in enumerate(parts_of(saved, self._repeats)):
            if part["finished"]:
                self._ended.setdefault(repeat, part)

    def part(self, saved: Mapping[str, Any], member: Member) -> dict[str, Any]:
        """Return a member's own state."""
        return parts_of(saved, self._repeats)[member.number % self._repeats]

    def release(self) -> None:
        """Keep the states of members that have ended, in place of the members, which leave the job."""
        for repeat, member in list(self._members.items()):
            if member.finished and not self.finished:
                self._ended[repeat] = _copied(member.state_dict())
                del self._members[repeat]

    @property
    def is_together(self) -> bool:
        """Whether all members that have not ended have finished the same epochs, so that the trial can be saved."""
        going = {member.finished_epochs for member in self._members.values() if not member.finished}
        return len(self._members) + len(self._ended) == self._repeats and len(going) < 2

    @property
    def finished_epochs(self) -> int:
        """The epochs that all members have finished that have not ended before."""
        going = [member.finished_epochs for member in self._members.values() if not member.finished]
        return min(going) if going else max(map(len, self._each("history")))

    @property
    def history(self) -> list[dict[str, float]]:
        """Mean and spread of the members' metrics by epoch, the first epoch first."""
        new = range(len(self._history), self.finished_epochs)
        if new:
            self._history += common_history(self._each("history"), new)
        return self._history

    @property
    def seconds(self) -> list[float]:
        """What each epoch took, of all members."""
        each = self._each("seconds")
        return [sum(own[epoch] for own in each if epoch < len(own)) for epoch in range(self.finished_epochs)]

    @property
    def finished(self) -> bool:
        """Whether all members have ended."""
        return all(self._each("finished"))

    @property
    def stopped_early(self) -> bool:
        """Whether no member has trained all its epochs."""
        return all(self._each("stopped_early"))

    @property
    def pruned(self) -> bool:
        """Whether the trial was stopped because others do better."""
        return any(self._each("pruned"))

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return int(self._each("parameters")[0])

    def state_to_save(self) -> dict[str, Any]:
        """Return all that is needed to continue exactly, for `Packer.pack`."""
        return self._state(Member.state_to_save)

    def state_within(self, batches: int) -> dict[str, Any]:
        """Return all that is needed to continue after so many batches of the running epoch."""
        return self._state(lambda member: member.state_within(batches))

    def _state(self, state_of: Callable[[Member], dict[str, Any]]) -> dict[str, Any]:
        parts = [
            state_of(self._members[repeat]) if repeat in self._members else self._ended[repeat]
            for repeat in range(self._repeats)
        ]
        first = dict(parts[0])
        weights = first.pop(_FIRST)
        return {
            **record_of(self),
            _FIRST: weights,
            PARTS: [first, *parts[1:]],
        }

    def _each(self, name: str) -> list[Any]:
        members, ended = self._members, self._ended
        return [
            getattr(members[repeat], name) if repeat in members else ended[repeat][name]
            for repeat in range(self._repeats)
        ]


def _copied(state: dict[str, Any]) -> dict[str, Any]:
    copied: dict[str, Any] = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().to("cpu", copy=True), state)
    return copied
