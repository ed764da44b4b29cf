"""Which members of a turn form units, and the merged models of those that do."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nasflow.config import MergeConfig
from nasflow.evaluator.group import SupervisedGroup
from nasflow.evaluator.supervised import SupervisedModule
from nasflow.merge.graph import Graph, NotTraceableError, trace
from nasflow.merge.module import MergedModel
from nasflow.merge.planner import Planner
from nasflow.merge.shapes import Spec
from nasflow.training.fused import FusedUnit, unchanged
from nasflow.training.member import Member
from nasflow.training.unit import SoloUnit, Unit

Failed = Callable[[Member, BaseException], None]

_TOLERANCE = {torch.float32: 1e-3, torch.float64: 1e-9}  # of a solo forward, relative to its largest value


class Former:
    """Forms the units of a job.

    Args:
        config: whether to fuse, and which passes of the user's take part.
        base_dir: the folder of the user's code.
        limits: the most members that a unit of a trial may have, where a larger one has failed.
    """

    def __init__(self, config: MergeConfig, base_dir: Path, limits: Mapping[int, int]):
        self._config = config
        self._limits = limits
        self._planner = Planner()

    def form(self, members: Sequence[Member], batch: Any, failed: Failed) -> list[Unit]:
        """Units of all members, for batches like this one. `failed` is called with a member that fails, and why."""
        graphs = self._graphs(members, batch)
        units: list[Unit] = []
        for limit in sorted({self._limits.get(member.number, len(members)) for member in graphs}, reverse=True):
            ready = [member for member in graphs if self._limits.get(member.number, len(members)) == limit]
            for group in self._planner.partition([graphs[member] for member in ready], limit):
                units += self._fuse([ready[index] for index in group], graphs, batch, failed)
        fused = {member for unit in units for member in unit.members}
        return units + [SoloUnit([member], failed) for member in members if member not in fused]

    def _graphs(self, members: Sequence[Member], batch: Any) -> dict[Member, Graph]:
        """The members that can be fused, with their graphs."""
        if self._config.fuse == "never" or not _is_pair(batch):
            return {}
        x = Spec.batch(batch[0])
        graphs = {}
        for member in members:
            module = member.module
            if isinstance(module, SupervisedModule) and SupervisedGroup.fits([module]):
                try:
                    graphs[member] = trace(module.model, x)
                except NotTraceableError:
                    continue
        return graphs

    def _fuse(self, members: list[Member], graphs: dict[Member, Graph], batch: Any, failed: Failed) -> list[Unit]:
        modules = [member.module for member in members]
        if len(members) == 1 or not SupervisedGroup.fits(modules):  # type: ignore[arg-type]
            return []

        def merge(positions: Sequence[int], row_failed: Callable[[int, BaseException], None]) -> MergedModel:
            chosen = [members[position] for position in positions]
            plan = self._planner.plan([graphs[member] for member in chosen])
            streams = [member.rng for member in chosen]
            return MergedModel(plan, streams, [stream.generator for stream in streams], row_failed)

        unit = FusedUnit(members, failed, merge)
        wrong = _disagreeing(unit, [m for m in members if not graphs[m].has_opaque], batch[0])
        if not wrong:
            return [unit]
        return self._fuse([member for member in members if member not in wrong], graphs, batch, failed)


def _is_pair(batch: Any) -> bool:
    return (
        isinstance(batch, tuple | list)
        and len(batch) == 2
        and all(isinstance(part, torch.Tensor) for part in batch)
        and batch[0].ndim > 0
    )


def _disagreeing(unit: FusedUnit, members: Sequence[Member], x: torch.Tensor) -> set[Member]:
    """Those of `members` whose merged forward is not their own: their code does what a trace can't see."""
    wrong = set()
    if not members:
        return wrong
    with torch.no_grad():
        with unchanged(unit.members):
            merged = dict(zip(unit.members, unit.forward(x), strict=True))
        with unchanged(members):
            for member in members:
                output = merged[member]
                with member.rng:
                    own = member.module(x.clone())
                bound = _TOLERANCE.get(own.dtype, 1e-2) * max(1.0, float(own.abs().max()))
                if own.shape != output.shape or not float((own - output).abs().max()) <= bound:
                    wrong.add(member)
    return wrong
