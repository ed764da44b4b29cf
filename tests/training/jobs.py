"""Make jobs, run them in this process, and read what became of each member."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import TypeAdapter

from nasflow.checkpoint.packing import pack
from nasflow.checkpoint.store import CheckpointStore
from nasflow.config.search import CheckpointConfig, EvaluatorConfig, MergeConfig, Target
from nasflow.evaluator.candidate import candidate_space
from nasflow.job.events import Epoch, Event, Evicted, Final
from nasflow.job.spec import JobSpec, MemberSpec, trial_dir
from nasflow.space.architecture import Architecture
from nasflow.training.training_job import TrainingJob

HERE = Path(__file__).parent / "models"
BLOBS = {"target": "spaces.py:blobs"}

_EVALUATOR: TypeAdapter[EvaluatorConfig] = TypeAdapter(EvaluatorConfig)


def evaluator(**values: Any) -> EvaluatorConfig:
    """An evaluator config, by default a short classification of the blobs."""
    return _EVALUATOR.validate_python({"kind": "classification", "data": BLOBS, "epochs": 2, **values})


def sample(space: str, config: EvaluatorConfig, count: int, seed: int = 0) -> list[Architecture]:
    """`count` architectures of the space and the evaluator's searched values."""
    rng = random.Random(seed)
    candidates = candidate_space(Target(target=space), config, HERE)
    return [candidates.sample(rng) for _ in range(count)]


def make_job(
    space: str,
    config: EvaluatorConfig,
    members: Mapping[int, Mapping[str, Any]] | Iterable[Mapping[str, Any]],
    data_seed: int = 5,
    *,
    fuse: Literal["measured", "always", "never"] = "never",
    passes: Iterable[str] = (),
    verify: Literal["start", "epoch", "never"] = "start",
    **checkpoint: int | str,
) -> JobSpec:
    """A job of these members, by trial number, in this order; a trial's seed follows from its number.

    Stepped one by one, as they are unless `fuse` says otherwise, members have the same bits in any company.
    """
    numbered = members if isinstance(members, Mapping) else dict(enumerate(members))
    return JobSpec(
        job_id="job",
        study="study",
        space=Target(target=space),
        evaluator=config,
        data=config.data,
        checkpoint=CheckpointConfig(**checkpoint),
        data_seed=data_seed,
        base_dir=HERE,
        merge=MergeConfig(fuse=fuse, passes=list(passes), verify=verify),
        members=[
            MemberSpec(trial=trial, architecture=Architecture(values), seed=1000 + trial)
            for trial, values in numbered.items()
        ],
    )


def train(spec: JobSpec, root: Path) -> list[Event]:
    """Run a job here; its events."""
    events: list[Event] = []
    TrainingJob(spec, root, events.append).run()
    return events


@dataclass(eq=False)
class Outcome:
    """All that is known of a member afterwards, but for how long it took."""

    epochs: list[dict[str, float | None]]
    final: dict[str, float] | None
    stopped_early: bool
    values: Any
    tensors: dict[str, torch.Tensor]

    __hash__ = None

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Outcome)
            and (self.epochs, self.final, self.stopped_early) == (other.epochs, other.final, other.stopped_early)
            and self.values == other.values
            and self.tensors.keys() == other.tensors.keys()
            and all(torch.equal(tensor, other.tensors[name]) for name, tensor in self.tensors.items())
        )


def outcome(events: Iterable[Event], root: Path, trial: int) -> Outcome:
    """A member's metrics as its events told them, and its newest checkpoint: weights, optimizer, schedule, streams."""
    events = list(events)
    told = {event.epoch: event.metrics for event in events if isinstance(event, Epoch) and event.trial == trial}
    assert list(told) == list(range(1, len(told) + 1)), "epochs are told in order, without a gap"
    final = next((event for event in events if isinstance(event, Final) and event.trial == trial), None)
    state = CheckpointStore(trial_dir(root, trial)).load_newest()
    assert state is not None
    for each in [state, *state.get("repeats", [])]:
        del each["seconds"]
    values, tensors = pack(state)
    return Outcome(
        list(told.values()),
        final.metrics if final else None,
        final.stopped_early if final else False,
        values,
        tensors,
    )


def weights(root: Path, trial: int) -> dict[str, torch.Tensor]:
    """The weights of a trial's newest checkpoint."""
    state = CheckpointStore(trial_dir(root, trial)).load_newest()
    assert state is not None
    return dict(state["module"])


def evictions(events: Iterable[Event]) -> dict[int, Evicted]:
    """The evicted members by trial."""
    return {event.trial: event for event in events if isinstance(event, Evicted)}
