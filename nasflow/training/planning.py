"""What a job tells of the units it forms."""

from collections.abc import Sequence

from nasflow.merge.module import MergedModel
from nasflow.merge.outline import outline
from nasflow.merge.planner import Planner
from nasflow.training.events import Planned, PlannedUnit
from nasflow.training.forming import Former
from nasflow.training.fused import FusedUnit
from nasflow.training.unit import Unit


def planned(units: Sequence[Unit], former: Former) -> Planned:
    """The event of units that were just formed."""
    told = [_told(unit, model, former.planner) for unit in units if (model := merged_model(unit)) is not None]
    together = {number for unit in told for number in unit.members}
    numbers = [member.number for unit in units for member in unit.members]
    return Planned(
        units=told,
        alone={
            number: former.reasons.get(number, "there is no other to fuse it with").partition("\n")[0]
            for number in numbers
            if number not in together
        },
    )


def merged_model(unit: Unit) -> MergedModel | None:
    """What runs the unit's members as one; None where each runs by itself."""
    return unit.model if isinstance(unit, FusedUnit) and isinstance(unit.model, MergedModel) else None


def _told(unit: Unit, model: MergedModel, planner: Planner | None) -> PlannedUnit:
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
