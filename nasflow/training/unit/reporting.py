"""The events that report a job's units, and the costs by which they were chosen."""

from collections import Counter
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
    units_of = [(unit, list(models.values())) for unit in units if (models := merged_models(unit))]
    merged = [_planned_unit(unit, models, former.planner) for unit, models in units_of]
    trials = {member.number: member.trial for unit in units for member in unit.members}
    return Planned(units=merged, alone={trials[number]: why for number, why in why_alone(units, former).items()})


def why_alone(units: Sequence[Unit], former: Former) -> dict[int, str]:
    """Return why members are in no unit with others, by their numbers."""
    return {
        member.number: former.reasons.get(member.number, "there is no other to fuse it with").partition("\n")[0]
        for unit in units
        if not merged_models(unit)
        for member in unit.members
    }


def measured(former: Former) -> list[Measured]:
    """Return the events that report the costs which were used and have not been reported, nor given to the job."""
    costs = former.planner and former.planner.costs
    if not costs:
        return []
    told = sorted(sent(costs.untold()).items())
    parts = [told[start : start + MOST_TOLD] for start in range(0, len(told), MOST_TOLD)]
    return [Measured(place=costs.place, figures=dict(part)) for part in parts]


def merged_models(unit: Unit) -> dict[str, MergedModel]:
    """Return the models that run the unit's members as one, by the layers' path; none where each runs by itself."""
    models = unit.models if isinstance(unit, StackedUnit) else {}
    return {path: model for path, model in models.items() if isinstance(model, MergedModel)}


def _planned_unit(unit: Unit, models: Sequence[MergedModel], planner: Planner | None) -> PlannedUnit:
    outlines = [outline(model) for model in models]
    measured = planner if planner is not None and planner.costs is not None else None
    kernels: Counter[str] = Counter()
    for outlined in outlines:
        kernels.update(outlined.kernels)
    return PlannedUnit(
        members=[member.trial for member in unit.members],
        operations=sum(outlined.operations for outlined in outlines),
        fused=sum(outlined.fused for outlined in outlines),
        kernels=dict(kernels),
        gathers=sum(outlined.gathers for outlined in outlines),
        seconds=measured and sum(measured.cost(model.plan) for model in models),
        seconds_alone=measured and sum(measured.alone(graph) for model in models for graph in model.plan.graphs),
    )
