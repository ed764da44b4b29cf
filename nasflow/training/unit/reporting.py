"""The events that report a job's units, and the costs by which they were chosen."""

from collections.abc import Sequence

from nasflow.job.events import Measured, Planned, PlannedUnit
from nasflow.kernel_costs import MOST_TOLD, sent
from nasflow.merge.planning.planner import Planner
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.view.summary import outline
from nasflow.training.unit.base import Unit
from nasflow.training.unit.grouping import Former
from nasflow.training.unit.stacked_unit import StackedUnit


def planned(units: Sequence[Unit], former: Former) -> Planned:
    """Return the event that reports units that were just formed."""
    merged = [_planned_unit(unit, model, former.planner) for unit in units if (model := merged_model(unit)) is not None]
    merged_units = [unit for unit in units if merged_model(unit) is not None]
    together = {member.number for unit in merged_units for member in unit.members}
    members = [member for unit in units for member in unit.members]
    return Planned(
        units=merged,
        alone={
            member.trial: former.reasons.get(member.number, "there is no other to fuse it with").partition("\n")[0]
            for member in members
            if member.number not in together
        },
    )


def measured(former: Former) -> list[Measured]:
    """Return the events that report the costs which were used and have not been reported, nor given to the job."""
    costs = former.planner and former.planner.costs
    if not costs:
        return []
    told = sorted(sent(costs.untold()).items())
    parts = [told[start : start + MOST_TOLD] for start in range(0, len(told), MOST_TOLD)]
    return [Measured(place=costs.place, figures=dict(part)) for part in parts]


def merged_model(unit: Unit) -> MergedModel | None:
    """Return the model that runs the unit's members as one; None where each runs by itself."""
    return unit.model if isinstance(unit, StackedUnit) and isinstance(unit.model, MergedModel) else None


def _planned_unit(unit: Unit, model: MergedModel, planner: Planner | None) -> PlannedUnit:
    outlined = outline(model)
    measured = planner if planner is not None and planner.costs is not None else None
    return PlannedUnit(
        members=[member.trial for member in unit.members],
        operations=outlined.operations,
        fused=outlined.fused,
        kernels=outlined.kernels,
        gathers=outlined.gathers,
        seconds=measured and measured.cost(model.plan),
        seconds_alone=measured and sum(map(measured.alone, model.plan.graphs)),
    )
