"""A job whose trials are trained by their own programs: one after the other, each in its process."""

from collections.abc import Callable
from pathlib import Path

from nasflow.clean_text import error_text
from nasflow.errors import ConfigError, InfrastructureError, JobError, PreemptedError
from nasflow.evaluator.candidate import Candidate, candidate_space
from nasflow.job import activity
from nasflow.job.events import Entered, Event, Evicted
from nasflow.job.spec import JobSpec, MemberSpec, stop_mark
from nasflow.resumable.job import JobRunner, State
from nasflow.training.member.metrics.reporting import Reported, events_of, must_stop
from nasflow.training.member_checkpoints import MemberCheckpoints
from nasflow.training.preemption import Notice
from nasflow.training.program.followed import FollowedTrial
from nasflow.training.program.trial import ProgramTrial
from nasflow.training.training_job import TrainingJob


class ProgramJob(TrainingJob):
    """As a TrainingJob, for evaluators whose programs nasflow did not write; it only follows their processes.

    The slot has one trial at a time, which has all of it; the job's other trials wait.

    Attributes:
        trial_kind: the class of its trials.
    """

    trial_kind: Callable[[JobSpec, MemberSpec, Path, Candidate], FollowedTrial] = ProgramTrial

    def __init__(self, spec: JobSpec, root: Path, tell: Callable[[Event], None]):
        super().__init__(spec.model_copy(update={"places": 1}), root, tell)

    def train(self, state: State, runner: JobRunner) -> None:
        """Train every trial to its end."""
        course = _Course(self._spec, self._root, self._checkpoints, state, runner, trial_kind=type(self).trial_kind)
        try:
            course.run()
        finally:
            course.close()


class _Course:
    """The turns of a job; in each, one trial has one epoch."""

    def __init__(
        self,
        spec: JobSpec,
        root: Path,
        checkpoints: MemberCheckpoints,
        state: State,
        runner: JobRunner,
        *,
        trial_kind: Callable[[JobSpec, MemberSpec, Path, Candidate], FollowedTrial],
    ):
        self._trial_kind = trial_kind
        self._spec, self._root, self._checkpoints = spec, root, checkpoints
        self._state, self._runner, self._roster = state, runner, state["roster"]
        self._members = {member.trial: member for member in self._spec.members}
        self._space = candidate_space(self._spec.space, self._spec.evaluator, self._spec.base_dir)
        self._trial: FollowedTrial | None = None
        self._notice = Notice()
        self._has_ended_epochs = False

    def run(self) -> None:
        """Train to the end of the job."""
        self._notice.listen()
        try:
            self._follow()
        finally:
            self._notice.stop_listening()

    def _follow(self) -> None:
        while self._roster.open_turn():
            (number,) = self._roster.turn
            activity.begin_epoch()
            try:
                if self._trial is None:
                    self._trial = self._admit(number)
                self._turn(self._trial)
            except (JobError, ConfigError) as error:
                if isinstance(error, InfrastructureError):
                    raise
                self._evict(number, str(error))
            except Exception as error:  # the space is the user's own code
                if self._trial is not None:
                    raise
                self._evict(number, error_text(error))
            activity.end_epoch()
        activity.end_epochs()

    def close(self) -> None:
        """End the running process."""
        if self._trial is not None:
            self._trial.close()

    def _admit(self, number: int) -> FollowedTrial:
        if number in self._state["waiting"]:
            self._checkpoints.tell(Entered(trial=number))
        spec = self._members[number]
        with activity.running(number):
            candidate: Candidate = self._space.validate(spec.architecture)
        trial = self._trial_kind(self._spec, spec, self._root, candidate)
        saved = self._checkpoints.newest(number)
        if saved is not None:
            trial.load_state_dict(saved)
        return trial

    def _turn(self, trial: FollowedTrial) -> None:
        with activity.running(trial.number):
            metrics = trial.train_epoch(self._look_up)
        trial.end_epoch(metrics)
        if metrics is not None:
            self._roster.take(trial.number, metrics, trial.parameters)
        if trial.number in self._roster.close_turn([] if trial.finished else [trial.number]):
            trial.prune()
        elif not (trial.finished or trial.is_ahead) and (told := must_stop(self._spec, self._root, trial)):
            trial.stop()
            self._checkpoints.tell_later(told)
        # its last epoch was reported before, if the program has ended without another one
        self._state["trained"] = [trial], self._fail, events_of if metrics is not None else _end_of
        self._runner.run_epoch(self._state)
        self._has_ended_epochs = True
        if self._trial is trial:
            trial.go_on()
            if trial.finished:
                self._leave(trial.number)

    def _look_up(self) -> None:
        if self._notice.came:
            self._checkpoints.wait()
            raise PreemptedError(self._notice.text, self._has_ended_epochs)

    def _fail(self, trial: Reported, error: BaseException) -> None:
        self._evict(trial.number, error_text(error))

    def _evict(self, number: int, error: str) -> None:
        epoch = 0 if self._trial is None else self._trial.finished_epochs + 1
        self._leave(number)
        self._roster.close_turn()
        stop_mark(self._root, number).unlink(missing_ok=True)
        self._checkpoints.tell_later(Evicted(trial=number, epoch=epoch, error=error))

    def _leave(self, number: int) -> None:
        self.close()
        self._trial = None
        self._roster.leave(number)


def _end_of(trial: Reported) -> list[Event]:
    return events_of(trial)[1:]
