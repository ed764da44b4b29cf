"""Which members of a turn form units, and the merged models of those that do."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nasflow.config import MergeConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.group import SupervisedGroup
from nasflow.evaluator.supervised import SupervisedModule
from nasflow.merge.cost import CostModel
from nasflow.merge.direct import DirectModel
from nasflow.merge.graph import Graph, NotTraceableError, trace
from nasflow.merge.module import MergedModel
from nasflow.merge.plan import Pass
from nasflow.merge.planner import Choices, Planner
from nasflow.merge.shapes import Spec
from nasflow.target import load_target
from nasflow.training.fused import FusedUnit, unchanged
from nasflow.training.member import Member
from nasflow.training.unit import SoloUnit, Unit

logger = logging.getLogger(__name__)

Failed = Callable[[Member, BaseException], None]

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}  # of a solo forward, relative to its largest value


class Former:
    """Forms the units of a job.

    Args:
        config: whether to fuse, and which passes of the user's take part.
        base_dir: the folder of the user's code.
        limits: the most members that a unit of a trial may have, where a larger one has failed.

    Attributes:
        planner: of its units; None as long as there was nothing to plan.
        reasons: by trial, why it is in no unit with others, of those that were formed last.
    """

    def __init__(self, config: MergeConfig, base_dir: Path, limits: Mapping[int, int]):
        self._config = config
        self._limits = limits
        self._passes = load_passes(config, base_dir)
        self.planner: Planner | None = None
        self.reasons: dict[int, str] = {}

    def form(self, members: Sequence[Member], batch: Any, failed: Failed) -> list[Unit]:
        """Units of all members, for batches like this one. `failed` is called with a member that fails, and why."""
        self.reasons = {member.number: why for member in members if (why := self._unfit(member, batch))}
        ready = [member for member in members if member.number not in self.reasons]
        graphs = self._graphs(ready, batch[0]) if ready else {}
        units: list[Unit] = []
        for limit in sorted({self._limit(member, len(members)) for member in graphs}, reverse=True):
            alike = [member for member in graphs if self._limit(member, len(members)) == limit]
            planner = self._planner_on(batch[0].device)
            for group in planner.partition([graphs[member] for member in alike], limit):
                if len(group) == 1:
                    self.reasons[alike[group[0]].number] = self._why_single(alike, limit, planner)
                units += self._fuse([alike[index] for index in group], graphs, batch[0], failed)
        units += [_direct(member, None, failed) for member in ready if member not in graphs]
        return units + [SoloUnit([member], failed) for member in members if member not in ready]

    def _unfit(self, member: Member, batch: Any) -> str | None:
        """Why a member is not even looked at."""
        if self._config.fuse == "never":
            return "merge.fuse is never"
        if not isinstance(member.module, SupervisedModule) or not SupervisedGroup.fits([member.module]):
            return f"its evaluator is not ready-made: {type(member.module).__name__}"
        return None if _is_pair(batch) else "its batches are not pairs of tensors"

    def _graphs(self, members: Sequence[Member], x: torch.Tensor) -> dict[Member, Graph]:
        """The graphs of those that can be traced."""
        graphs = {}
        for member in members:
            try:
                graphs[member] = trace(member.module.model, Spec.batch(x))  # type: ignore[arg-type]
            except NotTraceableError as error:
                self.reasons[member.number] = f"it can't be traced: {error}"
        return graphs

    def _limit(self, member: Member, most: int) -> int:
        return self._limits.get(member.number, most)

    def _why_single(self, alike: Sequence[Member], limit: int, planner: Planner) -> str:
        if limit == 1 and alike[0].number in self._limits:
            return "a unit that it was in has failed"
        if len(alike) == 1:
            return "there is no other to fuse it with"
        return "measured: fused, it would be no faster" if planner.costs else f"units have at most {limit} members"

    def _planner_on(self, device: torch.device) -> Planner:
        if self.planner is None:
            costs = CostModel(device) if self._config.fuse == "measured" else None
            self.planner = Planner(self._passes, device, costs)
        return self.planner

    def _fuse(self, members: list[Member], graphs: dict[Member, Graph], x: torch.Tensor, failed: Failed) -> list[Unit]:
        if len(members) == 1:
            return [_direct(members[0], graphs[members[0]], failed)]
        planner, choices = self._planner_on(x.device), Choices()

        def merge(positions: Sequence[int], row_failed: Callable[[int, BaseException], None]) -> MergedModel:
            chosen = [members[position] for position in positions]
            plan = planner.plan([graphs[member] for member in chosen], choices)
            streams = [member.rng for member in chosen]
            return MergedModel(plan, streams, [stream.generator for stream in streams], row_failed)

        unit = FusedUnit(members, failed, merge)
        wrong = _disagreeing(unit, [member for member in members if not graphs[member].has_opaque], x)
        if not wrong:
            return [unit]
        logger.warning("trials %s: the merged model does not do what theirs do", [member.number for member in wrong])
        self.reasons.update({member.number: "merged it does not compute what it does by itself" for member in wrong})
        kept = [member for member in members if member not in wrong]
        return [_direct(member, None, failed) for member in wrong] + (
            self._fuse(kept, graphs, x, failed) if kept else []
        )


def load_passes(config: MergeConfig, base_dir: Path) -> list[Pass]:
    """The user's own passes. Raises ConfigError for one that can't be imported or called."""
    passes = []
    for target in config.passes:
        found = load_target(target, base_dir)
        if not callable(found):
            raise ConfigError(f"merge.passes: {target} is not callable; it should be a function of a LogicalPlan")
        passes.append(found)
    return passes


def _direct(member: Member, graph: Graph | None, failed: Failed) -> FusedUnit:
    """A unit of one."""

    def merge(positions: Sequence[int], row_failed: Callable[[int, BaseException], None]) -> DirectModel:
        return DirectModel(member.module.model, graph, member.rng, row_failed)  # type: ignore[arg-type]

    return FusedUnit([member], failed, merge)


def _is_pair(batch: Any) -> bool:
    return (
        isinstance(batch, tuple | list)
        and len(batch) == 2
        and all(isinstance(part, torch.Tensor) for part in batch)
        and batch[0].ndim > 0
    )


def _disagreeing(unit: FusedUnit, members: Sequence[Member], x: torch.Tensor) -> set[Member]:
    """Those of `members` whose merged forward is not their own: their code does what a trace can't see."""
    wrong: set[Member] = set()
    if not members:
        return wrong
    with torch.no_grad():
        with unchanged(unit.members):
            merged = dict(zip(list(unit.members), unit.forward(x), strict=True))
        with unchanged(members):
            for member in members:
                output = merged[member]
                with member.rng:
                    own = member.module(x.clone())
                bound = _TOLERANCE.get(own.dtype, 1e-2) * max(1.0, float(own.abs().max()))
                if own.shape != output.shape or not float((own - output).abs().max()) <= bound:
                    wrong.add(member)
    return wrong
