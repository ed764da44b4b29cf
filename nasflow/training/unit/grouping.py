"""Groups the members of a turn into units, and builds their merged models."""

import logging
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nasflow.clean_text import error_message
from nasflow.config.search import MergeConfig
from nasflow.evaluator.ready_made.pairs import one_tensor
from nasflow.job import activity
from nasflow.job.events import DIFFERS
from nasflow.kernel_costs import Figures
from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.planning.memory import members_that_fit
from nasflow.merge.planning.own_passes import load_passes
from nasflow.merge.planning.planner import Choices, Planner
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.run.solo_model import DirectModel
from nasflow.merge.trace.graph import Graph, NotTraceableError, trace
from nasflow.merge.trace.node import Node
from nasflow.merge.trace.op_properties import runs_own_code
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.trace.stackable import why_not_looked_up, why_not_stacked
from nasflow.merge.values.parameter_stacks import OwnCode
from nasflow.system.gc_control import uncollected
from nasflow.training.device.fault import refuse_fault
from nasflow.training.member.member import Member
from nasflow.training.member.own_step import why_alone
from nasflow.training.unit.base import DiffersError, SoloUnit, Unit
from nasflow.training.unit.comparison import cover, differences
from nasflow.training.unit.fused import FusedUnit
from nasflow.training.unit.lockstep.comparison import differences as step_differences
from nasflow.training.unit.lockstep.joint.recordings import Recordings
from nasflow.training.unit.lockstep.joint.steps import may_be_joint
from nasflow.training.unit.lockstep.joint.unit import JointUnit
from nasflow.training.unit.lockstep.joint.view import NotJointError
from nasflow.training.unit.lockstep.reading import MODEL, Input, Reading, read
from nasflow.training.unit.lockstep.unit import LockstepUnit
from nasflow.training.unit.member_step import Subject
from nasflow.training.unit.mergeable import is_pair, is_ready_made, why_not_merged
from nasflow.training.unit.reasons import IN_TRAINING
from nasflow.training.unit.stacked_unit import Merge

logger = logging.getLogger(__name__)

Failed = Callable[[Member, BaseException], None]
Graphs = Mapping[str, Graph]
"""The graphs of the parts of a member's model, by their paths in its module."""


class Former:
    """Forms the units of a job.

    Args:
        config: whether to fuse, and which passes of the user are applied.
        base_dir: the folder of the user's code.
        limits: the most members that a unit of a trial may have, where a larger one has failed.
        given: costs of kernels by place, as a cost model takes them.

    Attributes:
        planner: of its units; None as long as there was nothing to plan.
        reasons: why a trial is in no unit with others, by trial, of the units that were formed last.
    """

    def __init__(
        self,
        config: MergeConfig,
        base_dir: Path,
        limits: Mapping[int, int],
        given: Mapping[str, Figures] | None = None,
    ):
        self._config = config
        self._limits, self._given, self._passes = limits, given, load_passes(config.passes, base_dir)
        self._agreed: set[Hashable] = set()
        self._differing: dict[int, str] = {}  # the reason, by trial
        self._apart: set[int] = set()  # trials whose steps can't run as one
        self._recordings = Recordings()
        self._owners: dict[Node, int] = {}  # the trial with own code in a node
        self.planner: Planner | None = None
        self.reasons: dict[int, str] = {}

    @uncollected()
    def form(self, members: Sequence[Member], batch: Any, failed: Failed) -> list[Unit]:
        """Return units of all members for batches like this one. Their `failed` gets a member that fails, and why."""
        self.reasons = {}
        readings = self._readings(members, batch)
        graphs = self._graphs(readings)
        merged = [(member.trial, graph) for member, parts in graphs.items() for graph in parts.values()]
        self._owners = {node: number for number, graph in merged for node in graph.nodes if runs_own_code(node)}
        kinds: dict[Hashable, list[Member]] = {}
        for member in graphs:
            outputs = tuple([(graph.output.spec.shape, graph.output.spec.other) for graph in graphs[member].values()])
            kind = (self._limit(member, len(members)), member.pace.accumulated, outputs, readings[member].key)
            kinds.setdefault(kind, []).append(member)
        units: list[Unit] = []
        for alike in kinds.values():
            reading = readings[alike[0]]
            parts = [[graphs[member][path] for member in alike] for path in reading.parts]
            planner = self._planner_on(reading.device)
            kept = (alike[0].pace.accumulated > 1) + any(member.average.is_on for member in alike)
            limit = min(self._limit(alike[0], len(members)), members_that_fit(parts, reading.device, kept))
            shared = [part.shared for part in reading.parts.values()]
            for group in self._partition(planner, alike, parts, limit, shared):
                if len(group) == 1:
                    number = alike[group[0]].number
                    self.reasons[number] = self._why_single(number, len(alike), limit, planner)
                chosen = [alike[index] for index in group]
                steps = max(readings[member].steps for member in chosen)
                units += self._fuse(_Group(chosen, graphs, replace(reading, steps=steps), batch, failed))
        units += [self._single(member, None, failed) for member in readings if member not in graphs]
        return units + [SoloUnit([member], failed) for member in members if member not in readings]

    def _partition(
        self, planner: Planner, members: Sequence[Member], parts: Any, limit: int, shared: Sequence[bool]
    ) -> list[list[int]]:
        """Return `planner.partition`; each member alone if it fails, or if there is nothing to measure costs for."""
        if len(members) == 1 or limit == 1:
            return [[index] for index in range(len(members))]
        try:
            return planner.partition(parts, limit, shared)
        except Exception as error:
            refuse_fault(error)
            logger.warning("units of %s trials can't be planned, each trains alone", len(members), exc_info=error)
            self._differing.update({m.number: f"planning its unit failed: {error_message(error)}" for m in members})
            return [[index] for index in range(len(members))]

    def _readings(self, members: Sequence[Member], batch: Any) -> dict[Member, Reading]:
        """Return what the models of the members read that may be in a unit with others."""
        readings = {}
        for member in members:
            found = self._reading(member, batch)
            if isinstance(found, Reading):
                readings[member] = found
            else:
                self.reasons[member.number] = found
        return readings

    def _reading(self, member: Member, batch: Any) -> Reading | str:
        """Return what a member's model reads, or why the member can't be in a unit with others."""
        if self._config.fuse == "never":
            return "merge.fuse is never"
        if why := why_alone(member):
            return why
        if not is_ready_made(member):
            return self._differing.get(member.number) or read(member, batch)
        if not is_pair(batch):
            return "its batches are not pairs of tensors"
        if why := member.module.why_solo(member.fitting.optimizer):  # type: ignore[operator]
            return str(why)
        return why_not_stacked(member.module.model) or Reading({MODEL: Input(batch[0])})  # type: ignore[arg-type]

    def _graphs(self, readings: dict[Member, Reading]) -> dict[Member, Graphs]:
        """The graphs of the members that can be traced and merged. What no stack can hold leaves the readings."""
        graphs: dict[Member, Graphs] = {}
        for member, reading in [*readings.items()]:
            try:
                with activity.running(member.trial):
                    found = reading.graphs or _graphs(member, reading)
                    reason = why_not_merged(member, found)
                if reason is not None:
                    self.reasons[member.number] = reason
                elif why := next(filter(None, map(why_not_looked_up, found.values())), None):
                    self.reasons[member.number] = why
                    del readings[member]
                else:
                    graphs[member] = found
            except NotTraceableError as error:
                self.reasons[member.number] = f"it can't be traced: {error}"
            except (Exception, SystemExit) as error:  # of the member's own code; the member's first step shows it
                refuse_fault(error)
                logger.warning("trial %s can't be traced", member.trial, exc_info=error)
                self.reasons[member.number] = f"it can't be traced: {error_message(error)}"
        return graphs

    def _limit(self, member: Member, most: int) -> int:
        return 1 if member.number in self._differing else self._limits.get(member.number, most)

    def _why_single(self, number: int, alike: int, limit: int, planner: Planner) -> str:
        if number in self._differing:
            return self._differing[number]
        if limit == 1 and number in self._limits:
            return "a unit that it was in has failed"
        if alike == 1:
            return "there is no other to fuse it with"
        if limit == 1:
            return "two like it do not fit into free memory"
        return "measured: fused, it would be no faster" if planner.costs else f"units have at most {limit} members"

    def _planner_on(self, device: torch.device) -> Planner:
        if self.planner is None:
            measured = self._config.fuse == "measured"
            costs = CostModel(device, own_code=self._own_code, given=self._given) if measured else None
            self.planner = Planner(self._passes, device, costs)
        return self.planner

    def _own_code(self, node: Node) -> AbstractContextManager[None]:
        """Within this, the code of the node's member is recorded as running."""
        return activity.running(self._owners[node]) if node in self._owners else nullcontext()

    def _compare(self, unit: FusedUnit, graphs: Mapping[Member, Graphs], batch: Any) -> dict[Member, str]:
        """Return the members for which a step in the unit differs from one of their own models, and the difference.

        A structure is not compared again with kernels with which it agreed before. Of the other members, all that run
        code of their own are compared, and enough of the rest to include each operation of each batch.
        """
        subjects = {member: Subject(member, graphs[member][MODEL]) for member in unit.members}
        model = unit.model
        assert isinstance(model, MergedModel)  # noqa: S101 - of several members
        runs = dict(zip(unit.members, model.operations_by_member, strict=True))
        keys = {
            member: (subjects[member].structure, tuple([kernel for _, _, kernel in run]))
            for member, run in runs.items()
        }
        new = {member: run for member, run in runs.items() if keys[member] not in self._agreed}
        asked = [member for member in new if subjects[member].is_opaque]
        asked += cover(
            {
                member: {(index, operation.node.signature) for index, operation, _ in run}
                for member, run in new.items()
                if not subjects[member].is_opaque
            }
        )
        wrong = differences(unit, subjects, (batch[0], batch[1]), asked) if asked else {}
        if not wrong:
            self._agreed.update(keys.values())
        return wrong

    def _compare_one(self, unit: FusedUnit, batch: Any, graphs: Mapping[Member, Graphs]) -> None:
        """Raise DiffersError if the unit's step differs for one member, another one in each epoch."""
        epoch = unit.members[0].finished_epochs
        asked = unit.members[epoch % len(unit.members)]
        subjects = {member: Subject(member, graphs[member][MODEL]) for member in unit.members}
        wrong = differences(unit, subjects, (batch[0], batch[1]), [asked])
        if wrong:
            self._agreed.clear()  # a kernel that begins to differ may do so for others too
            self._note(wrong, f" in epoch {epoch + 1}")
            raise DiffersError(self._differing[asked.number])

    def _note(self, wrong: Mapping[Member, str], when: str = "") -> None:
        for member, what in wrong.items():
            reason = what if what in IN_TRAINING else f"{DIFFERS}{when}: {what}"
            self._differing[member.number] = self.reasons[member.number] = reason
            logger.warning("trial %s trains by itself: %s", member.trial, self._differing[member.number])

    def _fuse(self, group: "_Group") -> list[Unit]:
        members = group.members
        if len(members) == 1:
            return [self._single(members[0], group.graphs[members[0]], group.failed)]
        try:
            unit, wrong = self._compared(group)
        except Exception as error:
            refuse_fault(error)
            numbers = [member.number for member in members]
            trials = [member.trial for member in members]
            logger.warning("trials %s can't be merged, half of them are tried", trials, exc_info=error)
            self.reasons.update({number: f"merging it failed: {error_message(error)}" for number in numbers})
            half = len(members) // 2
            parts = (members[:half], members[half:])
            return [unit for part in parts for unit in self._fuse(replace(group, members=part, choices=Choices()))]
        if not wrong:
            return [unit]
        self._note(wrong)
        kept = [member for member in members if member not in wrong]
        merged = self._fuse(replace(group, members=kept, choices=Choices())) if len(kept) > 1 else []
        alone = members if len(kept) == 1 else wrong
        # their graphs do not show everything
        return [self._single(member, None, group.failed) for member in alone] + merged

    def _compared(self, group: "_Group") -> tuple[Unit, dict[Member, str]]:
        """Return a unit of a group, and the members for which it computes something else than they by themselves."""
        checks, each_epoch = self._config.verify != "never", self._config.verify == "epoch"
        if is_ready_made(group.members[0]):
            compare = partial(self._compare_one, graphs=group.graphs) if each_epoch else None
            given = group.members, group.failed, self._merge(group), compare, self._config.cuda_graphs
            fused = FusedUnit(*given, note=self._note)
            return fused, self._compare(fused, group.graphs, group.batch) if checks else {}
        known = self._apart.isdisjoint(member.number for member in group.members)
        if checks and known and may_be_joint(group.members, group.reading, group.graphs):
            try:
                wrong = self._compare_steps(group, group.members, group.batch, joint=True)
            except NotJointError as error:
                logger.debug("steps can't run as one: %s", error)
            else:
                if not wrong:
                    return self._unit(group, joint=True, each_epoch=each_epoch), {}
            self._step_apart(group.members)
        wrong = self._compare_steps(group, group.members, group.batch) if checks else {}
        return self._unit(group, each_epoch=each_epoch), wrong

    def _step_apart(self, members: Sequence[Member]) -> None:
        self._apart.update(member.number for member in members)

    def _unit(self, group: "_Group", *, joint: bool = False, each_epoch: bool = False) -> LockstepUnit:
        every = partial(self._compare_one_step, group=group, joint=joint) if each_epoch else None
        make = partial(JointUnit, apart=self._step_apart, recordings=self._recordings) if joint else LockstepUnit
        merge = self._merge(group)
        return make(group.members, group.failed, merge, reading=group.reading, note=self._note, compare=every)

    def _single(self, member: Member, graphs: Graphs | None, failed: Failed) -> Unit:
        """A unit of one member."""
        if not is_ready_made(member):
            return SoloUnit([member], failed)
        graph = graphs[MODEL] if graphs else None
        module: Any = member.module

        def merge(positions: Sequence[int], own_code: OwnCode) -> dict[str, DirectModel]:
            def scored(row: int, run: Callable[[], Any]) -> Any:
                return one_tensor(own_code(row, run), module.config.kind)

            return {MODEL: DirectModel(module.model, graph, member.rng, scored)}

        return FusedUnit([member], failed, merge, captures=self._config.cuda_graphs)

    def _merge(self, group: "_Group") -> Merge:
        planner = self._planner_on(group.reading.device)

        def merge(positions: Sequence[int], own_code: OwnCode) -> dict[str, MergedModel]:
            chosen = [group.members[position] for position in positions]
            streams = [member.rng for member in chosen]
            generators = [stream.generator for stream in streams]
            models = {}
            for path, part in group.reading.parts.items():
                graphs = [group.graphs[member][path] for member in chosen]
                plan = planner.plan(graphs, group.choices, part.shared)
                models[path] = MergedModel(plan, streams, generators, own_code)
            return models

        return merge

    def _compare_steps(
        self, group: "_Group", asked: Sequence[Member], batch: Any, joint: bool = False
    ) -> dict[Member, str]:
        """Return the members whose steps differ in a unit of their twins, and the difference.

        Raises:
            NotJointError: with `joint`, the steps can't run as one.
        """
        reading = group.reading

        def make(twins: list[Member]) -> LockstepUnit:
            graphs = {twin: _graphs(twin, reading) for twin in twins}
            return self._unit(replace(group, members=twins, graphs=graphs, choices=Choices()), joint=joint)

        return step_differences(group.members, asked, make, batch, 1 + reading.steps)

    def _compare_one_step(self, unit: LockstepUnit, batch: Any, group: "_Group", joint: bool) -> None:
        """Raise DiffersError if the step of one member differs in the unit, another one in each epoch."""
        epoch = unit.members[0].finished_epochs
        asked = unit.members[epoch % len(unit.members)]
        present = replace(group, members=list(unit.members))
        if wrong := self._compare_steps(present, [asked], batch, joint):
            self._note(wrong, f" in epoch {epoch + 1}")
            raise DiffersError(self._differing[asked.number])


@dataclass(frozen=True)
class _Group:
    """Members that are fused.

    Attributes:
        graphs: of the parts of their models.
        reading: what these read.
        batch: the first one.
        failed: called with a member that fails, and why.
        choices: of kernels, kept when members leave.
    """

    members: list[Member]
    graphs: Mapping[Member, Graphs]
    reading: Reading
    batch: Any
    failed: Failed
    choices: Choices = field(default_factory=dict)


def _graphs(member: Member, reading: Reading) -> Graphs:
    return {path: trace(member.module.get_submodule(path), Spec.batch(read.x)) for path, read in reading.parts.items()}
