"""W5: make a group with a fault in one member, and summarize the results of the others."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.merging.group import Group
from nasflow.checkpoint.packing import pack
from nasflow.checkpoint.store import CheckpointStore
from nasflow.job.events import Ended, Epoch, Event, Evicted, Final
from nasflow.job.spec import JobSpec, MemberSpec, trial_dir
from nasflow.space.architecture import Architecture

ABSURD_RATE = 1e30


@dataclass(frozen=True)
class Ran:
    """A job that was run: its spec and its events."""

    spec: JobSpec
    events: list[Event]

    @property
    def crashed(self) -> bool:
        """Whether its process ended before the job did."""
        return not any(isinstance(event, Ended) for event in self.events)


def changed(member: MemberSpec, **choices: Any) -> MemberSpec:
    """Return the member with other choices."""
    return member.model_copy(update={"architecture": Architecture({**member.architecture, **choices})})


def with_fault(group: Group, kind: str) -> Group:
    """Return the group with a fault, or an `idle` one, in its middle member."""
    choices = {"fault": "idle", "optimizer.lr": ABSURD_RATE} if kind == "diverge" else {"fault": kind}
    members = list(group.members)
    members[guilty(group)] = changed(members[guilty(group)], **choices)
    return replace(group, members=tuple(members))


def guilty(group: Group) -> int:
    """Return the trial that fails: the number of the middle member."""
    return len(group) // 2


def summary(kind: str, group: Group, ran: list[Ran], clean: Path, root: Path) -> dict[str, Any]:
    """Return the results of the survivors, and the work."""
    survivors = [member.trial for member in group.members if member.trial != guilty(group)]
    finished = {event.trial for job in ran for event in job.events if isinstance(event, Final)}
    identical = [trial for trial in survivors if same_checkpoint(clean, root, trial)]
    step = int(group.space.params["fault_step"])
    share = 0.0 if kind == "diverge" else step / (group.epochs * steps_an_epoch(group))
    return {
        "fault": kind,
        "survivors": len(survivors),
        "survivors_trained": len(finished.intersection(survivors)),
        "survivors_bit_identical": len(identical),
        "largest_difference_of_accuracy": max(_accuracy_gap(clean, root, trial) for trial in survivors),
        "work": model_steps(group, ran) / (len(group) * group.epochs * steps_an_epoch(group)),
        "work_of_starting_all_over": 1 + share,
        "jobs": len(ran),
    }


def steps_an_epoch(group: Group) -> int:
    """Return the optimizer steps of one member in one epoch."""
    return len(group.load().train)  # type: ignore[arg-type]


def model_steps(group: Group, ran: list[Ran]) -> int:
    """Return the optimizer steps of all jobs: of reported epochs, and of epochs that were begun and lost.

    An evicted member has begun one; if the process ends, so has every member that has not finished.
    """
    whole = steps_an_epoch(group)
    begun = int(group.space.params["fault_step"]) % whole + 1
    total = 0
    for job in ran:
        total += whole * sum(isinstance(event, Epoch) and not event.replayed for event in job.events)
        ended = {event.trial for event in job.events if isinstance(event, Final | Evicted)}
        evicted = sum(isinstance(event, Evicted) for event in job.events)
        lost = len(job.spec.members) - len(ended) if job.crashed else 0
        total += begun * (evicted + lost)
    return total


def same_checkpoint(one: Path, other: Path, trial: int) -> bool:
    """Whether a trial's newest checkpoints below two roots are bit-identical: weights, optimizer, streams, history."""
    values, tensors = pack(_state(one, trial))
    others_values, others_tensors = pack(_state(other, trial))
    return (
        values == others_values
        and tensors.keys() == others_tensors.keys()
        and all(torch.equal(tensor, others_tensors[name]) for name, tensor in tensors.items())
    )


def _state(root: Path, trial: int) -> dict[str, Any]:
    state = CheckpointStore(trial_dir(root, trial)).load_newest()
    if state is None:
        raise RuntimeError(f"trial {trial} left no checkpoint in {root}")
    return {key: value for key, value in state.items() if key != "seconds"}


def _accuracy_gap(one: Path, other: Path, trial: int) -> float:
    first, second = (_state(root, trial)["history"][-1]["val_accuracy"] for root in (one, other))
    return abs(float(first) - float(second))
