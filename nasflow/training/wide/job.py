"""A job whose trial is trained by several processes at once."""

from nasflow.job.events import Planned
from nasflow.job.spec import trial_dir
from nasflow.resumable.job import JobRunner, State
from nasflow.training.program.job import ProgramJob
from nasflow.training.wide.epochs import epoch_files
from nasflow.training.wide.trial import WideTrial


class WideJob(ProgramJob):
    """Follows the ranks of its trial; of several trials, one after the other."""

    trial_kind = WideTrial

    def train(self, state: State, runner: JobRunner) -> None:
        """Train every trial to its end."""
        parallel = self._spec.evaluator.parallel
        if parallel is not None:
            why = f"evaluator.parallel trains it on {parallel.ranks} devices"
            self._checkpoints.tell(Planned(units=[], alone={member.trial: why for member in self._spec.members}))
        super().train(state, runner)

    def _end(self, state: State) -> None:
        self._checkpoints.finish()
        for member in self._spec.members:
            saved = self._without_tensors(member.trial)
            if saved is not None and saved["finished"]:
                epoch_files.remove(trial_dir(self._root, member.trial))
        super()._end(state)
