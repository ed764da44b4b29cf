"""A job whose trial is trained by several processes at once."""

from nasflow.job.events import Planned
from nasflow.resumable.job import JobRunner, State
from nasflow.training.program.job import ProgramJob
from nasflow.training.wide.trial import WideTrial


class WideJob(ProgramJob):
    """Follows the ranks of its trial; of several trials, one after the other."""

    trial_kind = WideTrial

    def train(self, state: State, runner: JobRunner) -> None:
        """Train every trial to its end."""
        parallel = self._spec.evaluator.parallel
        if parallel is not None:
            why = f"evaluator.parallel trains it on {parallel.devices} devices"
            self._checkpoints.tell(Planned(units=[], alone={member.trial: why for member in self._spec.members}))
        super().train(state, runner)
