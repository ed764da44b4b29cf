"""A job up to its first step: its members, its first batch and its units, with nothing trained and nothing written."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from nasflow.errors import ConfigError
from nasflow.job.spec import JobSpec
from nasflow.merge.planning.cost_model import CostModel
from nasflow.merge.planning.planner import Planner
from nasflow.merge.trace.graph import NotTraceableError, trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.merge.view.summary import Outline, Price, outline, prices
from nasflow.training.batch_runs import training_batches
from nasflow.training.loop import MergedModule, error_text, make_trainer
from nasflow.training.member.member import Member
from nasflow.training.schedule.turns import Roster
from nasflow.training.training_job import MemberMaker, load_job_data
from nasflow.training.unit.base import Unit
from nasflow.training.unit.grouping import Failed, Former
from nasflow.training.unit.reporting import merged_model, planned


@dataclass(frozen=True)
class UnitPlan:
    """How a unit of several trials runs.

    Attributes:
        trials: its members, in the order of their positions.
        outline: its steps.
        prices: of the steps.
        alone: seconds of a step's forward and backward if each trial made it by itself.
    """

    trials: tuple[int, ...]
    outline: Outline
    prices: tuple[Price, ...]
    alone: float

    @property
    def seconds(self) -> float:
        """Expected of a step's forward and backward."""
        return sum(price.seconds for price in self.prices)


@dataclass
class JobPlan:
    """How a job would run.

    Attributes:
        units: of several trials each.
        reasons: of every other trial, why it is in none.
        alone: seconds of a step's forward and backward of those of the others that can be traced.
        failed: what trials that failed so early raised.
        batch: the shape of a batch's first tensor, None if it has none.
        device: where it trains.
        costs: where the figures are from.
    """

    units: list[UnitPlan] = field(default_factory=list)
    reasons: dict[int, str] = field(default_factory=dict)
    alone: dict[int, float] = field(default_factory=dict)
    failed: dict[int, str] = field(default_factory=dict)
    batch: tuple[int, ...] | None = None
    device: str = "cpu"
    costs: CostModel | None = None


class _EnoughError(Exception):
    """Units are formed."""


def rehearse(spec: JobSpec) -> JobPlan:
    """The plan of a job's members, all at a time, on its first batch. Figures that are not on record are measured.

    Raises:
        UserError: data or a pass can't be loaded, or there is no batch.
    """
    data = load_job_data(spec.data, spec.base_dir, spec.data_seed)
    specs = {member.trial: member for member in spec.members}
    former = Former(spec.merge, spec.base_dir, {})
    trainer = make_trainer(spec.evaluator.precision)
    maker = MemberMaker(spec, data, trainer)
    plan = JobPlan()

    def build(trial: int) -> Member | None:
        try:
            return maker.make(specs[trial])
        except (Exception, SystemExit) as error:  # a candidate that can't be built is that trial's own failure
            plan.failed[trial] = error_text(error)
            return None

    def form(members: Sequence[Member], batch: Any, failed: Failed) -> list[Unit]:
        numbers = {getattr(member.module, "model", None): member.number for member in members}
        _fill(plan, former, former.form(members, batch, failed), batch, numbers)
        raise _EnoughError

    def on_evict(member: Member, error: str) -> None:
        plan.failed[member.number] = error

    def nothing(_: Member) -> None:
        pass

    module = MergedModule(
        Roster(list(specs), spec.places),
        data,
        build=build,
        on_start=nothing,
        on_evict=on_evict,
        form=form,
    )
    with contextlib.suppress(_EnoughError):
        trainer.fit(module, train_dataloaders=training_batches(data), val_dataloaders=data.validation)
        if len(plan.failed) < len(specs):
            raise ConfigError(f"evaluator.data: {spec.data.target} gives no batch to train on")
    return plan


def _fill(plan: JobPlan, former: Former, units: Sequence[Unit], batch: Any, numbers: Mapping[Any, int]) -> None:
    x = batch[0] if isinstance(batch, tuple | list) and batch else batch
    if isinstance(x, torch.Tensor):
        plan.batch, plan.device = tuple(x.shape), str(x.device)
    plan.reasons = planned(units, former).alone
    if former.planner is None:
        return
    plan.costs = former.planner.costs or CostModel(former.planner.device)
    planner = Planner((), former.planner.device, plan.costs)
    for unit in units:
        model = merged_model(unit)
        if model is not None:
            trials = tuple(numbers[graph.model] for graph in model.plan.graphs)
            alone = sum(map(planner.alone, model.plan.graphs))
            plan.units.append(UnitPlan(trials, outline(model), tuple(prices(model.plan, planner)), alone))
        elif isinstance(x, torch.Tensor):
            plan.alone.update(_alone(unit.members, x, planner))
    plan.costs.save()


def _alone(members: Sequence[Member], x: torch.Tensor, planner: Planner) -> dict[int, float]:
    found = {}
    for member in members:
        with contextlib.suppress(NotTraceableError):
            model: Any = member.module.model
            found[member.number] = planner.alone(trace(model, Spec.batch(x)))
    return found
