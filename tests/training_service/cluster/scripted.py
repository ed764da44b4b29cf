"""A cluster without machines: what it has, answers and refuses is what the test says."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from nasflow.config.services.storage import StorageConfig
from nasflow.errors import ServiceError
from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.base import ClusterService, ClusterSilentError
from nasflow.training_service.cluster.runs import Run
from nasflow.training_service.cluster.seen import Seen

RUNNING, PENDING = Seen(JobStatus.RUNNING), Seen(JobStatus.PENDING, "it waits")


class Scripted(ClusterService):
    """No program begins on it; a test writes what one would write.

    Attributes:
        there: the runs that it has.
        new: the state of the next runs.
        refusal: what it says to the next runs.
        silent: how many of the next queries it does not answer.
        obeys: whether it ends runs.
        looks: how often it was queried.
    """

    kind = "scripted"

    def __init__(self, root: Path, slots: int = 4, storage: StorageConfig | None = None):
        super().__init__(root, slots, 1e-6, 3600.0, "none:none", storage=storage)
        self.there: dict[str, Seen] = {}
        self.new = PENDING
        self.refusal: ServiceError | None = None
        self.silent, self.looks, self.obeys = 0.0, 0, True

    def _give(self, run: Run) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.there[run.name] = self.new

    def _look(self) -> Mapping[str, Seen]:
        self.looks += 1
        self.silent -= 1
        if self.silent >= 0:
            raise ClusterSilentError("training_service: the cluster does not answer")
        return dict(self.there)

    def _withdraw(self, names: Sequence[str]) -> None:
        if self.obeys:
            self.there.update(dict.fromkeys(names, Seen(JobStatus.LOST, "it was ended")))
