"""The input of every contestant: the same members, data, seeds and epochs."""

import math
import random
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path

from benchmarks.merging.plain import Trial
from nasflow.config.search import (
    CheckpointConfig,
    ClassificationConfig,
    DataConfig,
    MergeConfig,
    OptimizerConfig,
    Target,
)
from nasflow.config.values import FloatRange
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.loading.data_source import Data, load_data
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.seeds import derive_seed

ROOT = Path(__file__).resolve().parents[2]
LEARNING_RATES = (1e-3, 1e-2)
NEVER = 10**6
"""`every_epochs` of a job that is checkpointed only when it begins and when it ends."""


@dataclass(frozen=True)
class Group:
    """Members that are trained together, or one after the other."""

    space: Target
    evaluator: ClassificationConfig
    members: tuple[MemberSpec, ...]
    data_seed: int = 0
    merge: MergeConfig = field(default_factory=MergeConfig)

    def __len__(self) -> int:
        return len(self.members)

    @property
    def epochs(self) -> int:
        """The number of epochs that each member trains."""
        return int(self.evaluator.epochs)  # type: ignore[arg-type]

    @cached_property
    def epoch_seeds(self) -> list[int]:
        """The seeds with which nasflow draws the training batches of each epoch."""
        seed = derive_seed(self.data_seed, "train")
        return [derive_seed(seed, epoch) for epoch in range(self.epochs)]

    def load(self) -> Data:
        """Load the data again."""
        return load_data(self.evaluator.data, ROOT)

    def trial(self, member: MemberSpec) -> Trial:
        """Return a member for a plain loop."""
        architecture = dict(member.architecture)
        lr = architecture.pop("optimizer.lr")
        return Trial(self.space.target, self.space.params, architecture, lr, member.seed, self.epoch_seeds)

    def job(self, job_id: str, every_epochs: int = 1) -> JobSpec:
        """Return the job that nasflow's flow would submit for the members."""
        return JobSpec(
            job_id=job_id,
            study="benchmark",
            space=self.space,
            evaluator=self.evaluator,
            data=self.evaluator.data,
            checkpoint=CheckpointConfig(every_epochs=every_epochs),
            data_seed=self.data_seed,
            base_dir=ROOT,
            merge=self.merge,
            members=list(self.members),
        )

    def sample(self, count: int, costs: dict[int, float]) -> "Group":
        """Return `count` members, evenly spaced from the cheapest to the costliest, to represent all."""
        if count >= len(self):
            return self
        ordered = sorted(self.members, key=lambda member: costs[member.trial])
        places = [math.floor((place + 0.5) * len(self) / count) for place in range(count)]
        return replace(self, members=tuple(ordered[place] for place in places))


def classification(data: DataConfig, epochs: int, precision: str = "32-true") -> ClassificationConfig:
    """Return an evaluator: Adam, a learning rate searched in `LEARNING_RATES`, accuracy after every epoch."""
    lr = FloatRange(float=LEARNING_RATES, log=True)
    values = {"data": data, "epochs": epochs, "precision": precision}
    return ClassificationConfig(**values, optimizer=OptimizerConfig(name="adam", lr=lr))


def draw(space: Target, evaluator: ClassificationConfig, count: int, seed: int) -> Group:
    """Draw `count` members uniformly from the space and the learning rates."""
    candidates = candidate_space(space, evaluator, ROOT)
    rng = random.Random(seed)
    members = [
        MemberSpec(trial=number, architecture=candidates.sample(rng), seed=derive_seed("benchmark", seed, number))
        for number in range(count)
    ]
    return Group(space, evaluator, tuple(members))
