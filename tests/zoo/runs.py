"""Groups of four of each architecture, trained merged and each by itself.

Adam divides gradients by their size, so those that are zero but for rounding, as of a bias before a batch norm, take
the rest with them. So where merged differs from alone, the members train alone once more, each weight off by one unit
in its last place. If that takes them as far, the gradients of their first step are compared instead.
"""

import itertools
import math
import random
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import torch

from nasflow.checkpoint.packing import unpack
from nasflow.config.search import CheckpointConfig, MergeConfig, Target
from nasflow.job.events import Event, Planned
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.merge.kernels.base import Kernel
from nasflow.merge.kernels.loop import Loop
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.shape_inference import Scalar
from nasflow.merge.values.layout import Layout
from nasflow.space.architecture import Architecture
from tests.training.jobs import evaluator, evictions, outcome, train

HERE = Path(__file__).parent
TOLERANCE = 1e-9
AS_FAR = 100  # times as far as that one unit in the last place takes a member, rounding in every step may take it
MEMBERS = [Architecture({"width": width, "depth": depth}) for width, depth in itertools.product([1, 2], [1, 2])]

_ADAM = {"name": "adamw", "lr": 1e-3}
_MOMENTUM = {"name": "sgd", "lr": 1e-3, "momentum": 0.9}  # after one step it holds the gradients

Fuse = Literal["always", "measured", "never"]


class RandomCosts:
    """Stands in for `CostModel` and draws kernels: no result may depend on which ones run."""

    place = "0" * 16

    def __init__(self, device: torch.device, own_code: object = None, given: object = None):
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
        """Do nothing: random costs are not kept."""

    def untold(self) -> dict[str, float]:
        """Return nothing: random costs are not told."""
        return {}


@dataclass(frozen=True)
class Result:
    """The outcome of a group.

    Attributes:
        operations: of all members, as they would run one by one; 0 where none was in a unit with others.
        fused: of those, the ones that ran together.
        alone: why members were in no unit with others.
        difference: the largest between merged and alone, relative to 1 or the value if that is larger.
        where: the place of that difference.
        rounding: 0, or how far one unit in the last place of its weights takes a member by itself: then only the
            gradients of the first step were compared, relative to the largest of the member.
    """

    operations: int
    fused: int
    alone: dict[int, str]
    difference: float
    where: str
    rounding: float = 0.0


@dataclass(frozen=True)
class _Trained:
    """A job that has ended."""

    events: list[Event]
    root: Path

    def left(self) -> dict[str, Any]:
        """Return all results of each member."""
        found = {f"member {trial}": outcome(self.events, self.root, trial) for trial in range(len(MEMBERS))}
        return {
            name: {"epochs": left.epochs, "final": left.final, "state": unpack(left.values, left.tensors)}
            for name, left in found.items()
        }

    def gradients(self) -> dict[str, Any]:
        """Return the gradients of each member's only step, relative to its largest."""
        found = {}
        for name, left in self.left().items():
            states = left["state"]["fitting"]["optimizer"]["state"]
            grads = {index: state["momentum_buffer"] for index, state in states.items()}
            largest = max(grad.abs().max() for grad in grads.values())
            found[name] = {index: grad / largest for index, grad in grads.items()}
        return found


class Group:
    """Four members of an architecture; their jobs are kept in a folder."""

    def __init__(self, name: str, root: Path):
        self._name, self._root = name, root

    def compare(self, fuse: Fuse) -> Result:
        """Train it merged in one of the ways, and compare all results with those of the members alone."""
        merged = self._train(fuse, fuse)
        plan = next(event for event in merged.events if isinstance(event, Planned))
        operations, fused = (sum(getattr(unit, name) for unit in plan.units) for name in ("operations", "fused"))
        difference, where = _largest_difference(merged.left(), self._alone.left())
        if not TOLERANCE < difference <= AS_FAR * self._rounding:
            return Result(operations, fused, plan.alone, difference, where)
        first = self._train(f"{fuse}, one step", fuse, steps=1)
        found = _largest_difference(first.gradients(), self._first_alone.gradients())
        return Result(operations, fused, plan.alone, *found, self._rounding)

    @cached_property
    def _alone(self) -> _Trained:
        return self._train("alone", "never")

    @cached_property
    def _first_alone(self) -> _Trained:
        return self._train("alone, one step", "never", steps=1)

    @cached_property
    def _rounding(self) -> float:
        """Return how far one unit in the last place takes the members."""
        return _largest_difference(self._train("nudged", "never", nudge=True).left(), self._alone.left())[0]

    def _train(self, folder: str, fuse: Fuse, *, steps: int | None = None, nudge: bool = False) -> _Trained:
        """Run a job of the members, of two epochs or of `steps` steps."""
        config = evaluator(
            precision="64-true",
            data={"target": "spaces.py:samples", "params": {"name": self._name, "steps": steps or 3}},
            epochs=1 if steps else 2,
            optimizer=_MOMENTUM if steps else _ADAM,
        )
        spec = JobSpec(
            job_id="job",
            study="zoo",
            space=Target(target="spaces.py:build", params={"name": self._name, "nudge": nudge}),
            evaluator=config,
            data=config.data,
            checkpoint=CheckpointConfig(),
            data_seed=5,
            base_dir=HERE,
            merge=MergeConfig(fuse=fuse),
            members=[MemberSpec(trial=trial, architecture=member, seed=trial) for trial, member in enumerate(MEMBERS)],
        )
        with mock.patch("nasflow.training.unit.grouping.CostModel", RandomCosts):
            events = train(spec, self._root / folder)
        assert not evictions(events), evictions(events)
        return _Trained(events, self._root / folder)


def _largest_difference(one: dict[str, Any], other: dict[str, Any]) -> tuple[float, str]:
    pairs = [found for name in one for found in _differences(one[name], other[name], name)]
    return max(pairs)


def _differences(one: Any, other: Any, where: str) -> Iterator[tuple[float, str]]:
    """Yield the difference and its place; infinite where the two are of different kinds."""
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
