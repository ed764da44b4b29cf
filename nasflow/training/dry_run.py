"""A job up to its first step: its members, its first batch and its units, with nothing trained and nothing written."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from nasflow.errors import ConfigError
from nasflow.evaluator.loading.folds import own_batch
from nasflow.job.spec import JobSpec
from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.planning.planner import Planner
from nasflow.merge.trace.graph import NotTraceableError, trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.view.summary import Outline, Price, outline, prices
from nasflow.training.driver import by_device
from nasflow.training.job_driver import SpecDriver
from nasflow.training.lightning_loop import run
from nasflow.training.member.member import Member
from nasflow.training.schedule.repeats import members_of
from nasflow.training.schedule.turns import Roster
from nasflow.training.unit.base import Unit
from nasflow.training.unit.grouping import Former
from nasflow.training.unit.lockstep.reading import MODEL
from nasflow.training.unit.reporting import merged_models, why_alone


@dataclass(frozen=True)
class UnitPlan:
    """How a unit of several trials runs, or a part of their models.

    Attributes:
        members: their numbers, as `members_of` gives them, in the order of their positions.
        part: the path of the part in their modules; empty for their models as a whole.
        device: of the job's devices, the one that trains them.
        outline: its steps.
        prices: of the steps.
        alone: seconds of a step's forward and backward if each trial made it by itself.
    """

    members: tuple[int, ...]
    part: str
    device: int
    outline: Outline
    prices: tuple[Price, ...]
    alone: float

    @property
    def seconds(self) -> float:
        """Expected seconds of a step's forward and backward."""
        return sum(price.seconds for price in self.prices)


@dataclass
class JobPlan:
    """How a job would run. Members are known by their numbers, as `members_of` gives them.

    Attributes:
        repeats: how many members train each trial.
        member_name: what one of several is called, `fold` or `repeat`.
        units: those of several members.
        reasons: why a member is in none of them.
        alone: seconds of a step's forward and backward of a member that is in none of them and can be traced.
        failed: the errors of members that failed before their first step.
        batch: the shape of a batch's first tensor, None if it has none.
        device: where it trains.
        devices: on how many devices.
        costs: the cost models that gave the seconds.
    """

    repeats: int = 1
    member_name: str = "repeat"
    units: list[UnitPlan] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    alone: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    batch: tuple[int, ...] | None = None
    device: str = "cpu"
    devices: int = 1
    costs: list[CostModel] = field(default_factory=list)


class _DryRun(SpecDriver):
    """Drives a job's members up to their first step, which plans their units and ends the job."""

    def __init__(self, spec: JobSpec):
        repeats = spec.evaluator.members_per_trial
        numbers = [number for member in spec.members for number in members_of(member.trial, repeats)]
        super().__init__(spec, Roster(numbers, spec.places, repeats=repeats))
        self.plan = JobPlan(repeats, self._member_name)
        self.is_planned = False

    def open_turn(self) -> bool:
        """Open the first turn only."""
        return not self.is_planned and super().open_turn()

    def step(self, batches: Sequence[Any]) -> None:
        """Plan units for the first batch; then all members leave."""
        numbers = {part: member.number for member in self.turn for part in member.module.modules()}
        copies = self.devices.copies(batches)
        self.plan.devices = len(self.devices.all)
        for index, here in by_device(self.turn):
            batch = copies.on(index)[0]
            with self.devices.entered(index):
                units = self.form(here, batch)
                _fill(self.plan, self.former_of(here), units, own_batch(batch, 0), numbers)
        self.is_planned = True
        for member in self.active:
            self.remove(member)

    def evicted(self, number: int, epoch: int, error: str) -> None:
        """Note the error of a member."""
        self.plan.failed[number] = error


def rehearse(spec: JobSpec) -> JobPlan:
    """Return the plan of a job's members, all at a time, on its first batch. Costs that are not stored are measured.

    Raises:
        UserError: data or a pass can't be loaded, or there is no batch.
    """
    driver = _DryRun(spec)
    run(driver, validate=False)
    if not driver.is_planned and len(driver.plan.failed) < len(spec.members) * driver.plan.repeats:
        target = "" if spec.data is None else spec.data.target
        raise ConfigError(f"evaluator.data: {target} gives no batch to train on")
    return driver.plan


def _fill(plan: JobPlan, former: Former, units: Sequence[Unit], batch: Any, number_of: Mapping[Any, int]) -> None:
    x = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if isinstance(x, torch.Tensor):
        plan.batch, plan.device = tuple(x.shape), x.device.type
    plan.reasons |= why_alone(units, former)
    if former.planner is None:
        return
    costs = former.planner.costs or CostModel(former.planner.device)
    plan.costs.append(costs)
    planner = Planner((), former.planner.device, costs)
    for unit in units:
        models = merged_models(unit)
        for path, model in models.items():
            members = tuple(number_of[graph.model] for graph in model.plan.graphs)
            alone = sum(map(planner.alone, model.plan.graphs))
            plan.units.append(
                UnitPlan(
                    members=members,
                    part=path if path != MODEL else "",
                    device=unit.members[0].device_index,
                    outline=outline(model),
                    prices=tuple(prices(model.plan, planner)),
                    alone=alone,
                )
            )
        if not models and isinstance(x, torch.Tensor):
            plan.alone.update(_alone(unit.members, x, planner))
    costs.save()


def _alone(members: Sequence[Member], x: torch.Tensor, planner: Planner) -> dict[int, float]:
    found = {}
    for member in members:
        model = getattr(member.module, "model", None)
        if not isinstance(model, nn.Module):
            continue
        with contextlib.suppress(NotTraceableError):
            found[member.number] = planner.alone(trace(model, Spec.batch(x)))
    return found
