"""The event that reports a job's units."""

from collections.abc import Sequence

from nasflow.job.events import Planned, PlannedUnit
from nasflow.merge.planning.planner import Planner
from nasflow.merge.run.merged_model import MergedModel
from nasflow.merge.view.summary import outline
from nasflow.training.unit.base import Unit
from nasflow.training.unit.fused import FusedUnit
from nasflow.training.unit.grouping import Former


def planned(units: Sequence[Unit], former: Former) -> Planned:
    """Return the event that reports units that were just formed."""
    merged = [_planned_unit(unit, model, former.planner) for unit in units if (model := merged_model(unit)) is not None]
    together = {number for unit in merged for number in unit.members}
    numbers = [member.number for unit in units for member in unit.members]
    return Planned(
        units=merged,
        alone={
            number: former.reasons.get(number, "there is no other to fuse it with").partition("\n")[0]
            for number in numbers
            if number not in together
        },
    )


def merged_model(unit: Unit) -> MergedModel | None:
    """Return the model that runs the unit's members as one; None where each runs by itself."""
    return unit.model if isinstance(unit, FusedUnit) and isinstance(unit.model, MergedModel) else None


def _planned_unit(unit: Unit, model: MergedModel, planner: Planner | None) -> PlannedUnit:
    outlined = outline(model)
    measured = planner if planner is not None and planner.costs is not None else None
    return PlannedUnit(
        members=[member.number for member in unit.members],
        operations=outlined.operations,
        fused=outlined.fused,
        kernels=outlined.kernels,
        gathers=outlined.gathers,
        seconds=measured and measured.cost(model.plan),
        seconds_alone=measured and sum(map(measured.alone, model.plan.graphs)),
    )
