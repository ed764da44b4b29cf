"""Records the kernels and the paths of units that ran."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from nasflow.merge.run.merged_model import MergedModel
from nasflow.native.program import Program
from nasflow.training.unit.base import Unit
from nasflow.training.unit.reporting import merged_models

PATHS = (
    "unit",
    "tape",
    "replay",
    "native program",
    "gather",
    "apart",
    "one row",
    "whole on a tape",
    "eviction",
    "pruning",
    "resume",
)


@dataclass
class Paths:
    """Names of kernels and of `PATHS` that a case used."""

    met: set[str] = field(default_factory=set)

    def look(self, units: Sequence[Unit]) -> None:
        """Record what runs these units."""
        for unit in units:
            for model in merged_models(unit).values():
                self.met.add("unit")
                self._look_at(model)

    def _look_at(self, model: MergedModel) -> None:
        for batch in model.plan.batches:
            if batch.kernel is not None and (len(batch.operations) > 1 or batch.kernel.is_batched):
                self.met.add(batch.kernel.__name__)
                if len(batch.operations) == 1 and batch.kernel.is_batched and not batch.operations[0].is_shared:
                    self.met.add("one row")
            if batch.reason == "measured: gathering costs more":
                self.met.add("apart")
        if model.gathers:
            self.met.add("gather")
        for region in model.regions:
            self.met.add("tape")
            for recording in (one for calls in region._recordings.values() for one in calls.values()):
                if recording.runs > 1:
                    self.met.add("replay")
                calls = [*recording.tape._forward, *(recording.tape._backward or [])]
                if any(isinstance(call, Program) for call in calls):
                    self.met.add("native program")
        if model._whole is not None:
            self.met.add("whole on a tape")


def counted(cases: Sequence[Paths]) -> Counter[str]:
    """Return how many cases used each."""
    return Counter(name for paths in cases for name in paths.met)
