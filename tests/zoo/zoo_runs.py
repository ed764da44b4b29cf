"""Groups of four of each architecture, trained merged and each by itself."""

import itertools
import math
import random
import time
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch
from training_jobs import evaluator, evictions, outcome, train

from nasflow.config import CheckpointConfig, MergeConfig, Target
from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.layout import Layout
from nasflow.merge.node import Node
from nasflow.merge.shapes import Scalar
from nasflow.space.architecture import Architecture
from nasflow.training.events import Event, Planned
from nasflow.training.packing import unpack
from nasflow.training.spec import JobSpec, MemberSpec

HERE = Path(__file__).parent
TOLERANCE = 1e-9
MEMBERS = [Architecture({"width": width, "depth": depth}) for width, depth in itertools.product([1, 2], [1, 2])]

# Adam turns gradients that are zero but for rounding, as those of a bias before a batch norm or of an attention's keys,
# into steps of full size. These train by momentum instead, whose buffers hold the gradients from the first step on.
AMPLIFIED = frozenset(
    [
        *(
            "SqueezeNext",
            "GhostNet",
            "BAM-ResNet",
            "IBN(b)-ResNet",
            "RevNet",
            "PyramidNet",
            "DIA-ResNet",
            "DIA-PreResNet",
        ),
        *("MobileNetV2", "IGCV3", "MnasNet", "MixNet", "FBNet", "SPNASNet", "ProxylessNAS"),
        *("EfficientNet", "EfficientNet-Edge"),
        *("BERT from its parts", "GPT-2 from its parts", "T5 from its parts", "ViT from its parts"),
    ]
)

_ADAM = {"name": "adamw", "lr": 1e-3}
_MOMENTUM = {"name": "sgd", "lr": 1e-3, "momentum": 0.9}

Fuse = Literal["always", "measured", "never"]


class RandomCosts:
    """Stands for `CostModel`, so that kernels are drawn: no result may depend on which ones run."""

    def __init__(self, device: torch.device):
        self._drawn: dict[Hashable, float] = {}
        self._rng = random.Random(1)

    def kernel(self, kernel: type[Kernel], node: Node, rows: int, shared: bool) -> float:
        if kernel is Loop and isinstance(node.spec, Scalar):
            return math.inf  # measured, it never is the cheaper one
        return self._drawn.setdefault((kernel, node.signature, rows, shared), self._rng.random())

    def gather(self, layout: Layout, numbers: int) -> float:
        return 0.0

    def step(self) -> float:
        return 1e3  # so that units are formed

    def save(self) -> None:
        """Nothing is kept."""


@dataclass
class Result:
    """What became of a group.

    Attributes:
        operations: of all members, as they would run one by one; 0 where none was in a unit with others.
        fused: of those, the ones that ran together.
        alone: why members were in no unit with others.
        difference: the largest between merged and alone, relative to 1 or the value if that is larger.
        where: that is.
        seconds: of the merged job.
    """

    operations: int
    fused: int
    alone: dict[int, str]
    difference: float
    where: str
    seconds: float


def compare(name: str, root: Path, modes: Sequence[Fuse] = ("always", "measured")) -> dict[Fuse, Result]:
    """Train a group merged in each of the ways and each member by itself, and compare all that is left of them."""
    alone = _train(name, "never", root)
    results: dict[Fuse, Result] = {}
    for fuse in modes:
        began = time.perf_counter()
        merged = _train(name, fuse, root)
        seconds = time.perf_counter() - began
        differences = [
            found
            for trial in range(len(MEMBERS))
            for found in _differences(
                _left(merged, root / fuse, trial), _left(alone, root / "never", trial), f"member {trial}"
            )
        ]
        plan = next(event for event in merged if isinstance(event, Planned))
        results[fuse] = Result(
            sum(unit.operations for unit in plan.units),
            sum(unit.fused for unit in plan.units),
            plan.alone,
            *max(differences),
            seconds,
        )
    return results


def _train(name: str, fuse: Fuse, root: Path) -> list[Event]:
    params = {"name": name}
    config = evaluator(
        precision="64-true",
        data={"target": "zoo_spaces.py:samples", "params": params},
        optimizer=_MOMENTUM if name in AMPLIFIED else _ADAM,
    )
    spec = JobSpec(
        job_id="job",
        study="zoo",
        space=Target(target="zoo_spaces.py:build", params=params),
        evaluator=config,
        data=config.data,
        checkpoint=CheckpointConfig(),
        data_seed=5,
        base_dir=HERE,
        merge=MergeConfig(fuse=fuse),
        members=[MemberSpec(trial=trial, architecture=member, seed=trial) for trial, member in enumerate(MEMBERS)],
    )
    with mock.patch("nasflow.training.forming.CostModel", RandomCosts):
        events = train(spec, root / fuse)
    assert not evictions(events), evictions(events)
    return events


def _left(events: Sequence[Event], root: Path, trial: int) -> dict[str, Any]:
    found = outcome(events, root, trial)
    return {"epochs": found.epochs, "final": found.final, "state": unpack(found.values, found.tensors)}


def _differences(one: Any, other: Any, where: str) -> Iterator[tuple[float, str]]:
    """By place; infinite where they are not of a kind."""
    if isinstance(one, dict) and isinstance(other, dict) and one.keys() == other.keys():
        for key, value in one.items():
            yield from _differences(value, other[key], f"{where}/{key}")
    elif isinstance(one, list | tuple) and isinstance(other, list | tuple) and len(one) == len(other):
        for index, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from _differences(a, b, f"{where}/{index}")
    elif isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor) and one.shape == other.shape:
        if one.is_floating_point() and one.numel():
            difference = ((one - other).abs() / other.abs().clamp_min(1)).max().item()
            yield (math.inf if math.isnan(difference) else difference), where
        else:
            yield (0.0 if torch.equal(one, other) else math.inf), where
    elif isinstance(one, float) and isinstance(other, float):
        yield (abs(one - other) / max(1.0, abs(other)) if math.isfinite(one) else math.inf), where
    else:
        yield (0.0 if one == other else math.inf), where
