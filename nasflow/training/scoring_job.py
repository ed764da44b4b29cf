"""A job that scores trained trials on test data, and trains nothing."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule

from nasflow.clean_text import error_text
from nasflow.config.search import ProgramConfig
from nasflow.errors import ConfigError, InfrastructureError, PreemptedError
from nasflow.evaluator.loading.data_source import load_test_data
from nasflow.evaluator.ready_made.confusion import ConfusionCounter
from nasflow.evaluator.ready_made.supervised import ClassificationModule
from nasflow.job import activity
from nasflow.job.events import MOST_CLASSES, Confusion, Ended, Evicted, Final, Started
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.space.lazy_layers import make_by_weights
from nasflow.system.gc_control import frozen
from nasflow.training.lightning_loop import make_trainer
from nasflow.training.member_checkpoints import MemberCheckpoints
from nasflow.training.member_maker import load_job_data, make_member, samples_of, seeded_data
from nasflow.training.preemption import Notice
from nasflow.training.repeated import parts_of
from nasflow.training.scoring import score
from nasflow.training.training_job import Tell


class ScoringJob:
    """Scores the members of a spec on the test data of its evaluator, and calls `tell` with each event.

    A LightningModule with a `test_step` is scored by that, any other by its `validation_step`. The metrics are named
    `test_...`: `val_` at the begin of a name is replaced. The confusion matrix of a ready-made classifier is
    reported, too.
    """

    def __init__(self, spec: JobSpec, root: Path, tell: Tell):
        self._spec = spec
        self._tell = tell
        self._checkpoints = MemberCheckpoints(spec, root, tell)
        self._notice = Notice()

    def run(self) -> None:
        """Run the job to its end. What it raises is the whole job's failure; a member's failure only evicts it."""
        with frozen():
            try:
                self._run()
            finally:
                self._checkpoints.close()

    def _run(self) -> None:
        states = {member.trial: self._checkpoints.ended(member.trial) for member in self._spec.members}
        self._tell(Started(resumed={trial: state["epoch"] for trial, state in states.items()}))
        for member in self._spec.members:
            state = states[member.trial]
            try:
                with activity.running(member.trial):
                    metrics = self._score(member, state)
            except InfrastructureError:
                raise
            except (Exception, SystemExit) as error:  # the member's own code, or its data
                self._tell(Evicted(trial=member.trial, epoch=state["epoch"], error=error_text(error)))
            else:
                self._tell(Final(trial=member.trial, epochs=state["epoch"], metrics=metrics))
        self._tell(Ended())

    def _score(self, spec: MemberSpec, state: dict[str, Any]) -> dict[str, float]:
        member = make_member(self._spec, spec, self._samples)
        config = member.config.test_data
        if config is None:
            raise ConfigError("evaluator.test_data: there is none")
        data = seeded_data(lambda: load_test_data(config, self._spec.base_dir), self._spec.data_seed)
        trainer = make_trainer(member.config.precision)
        member.attach(trainer, "fit", datamodule=data.module)
        trainer.precision_plugin.convert_module(member.module.to(trainer.strategy.root_device))
        first, *_ = parts_of(state, self._spec.evaluator.members_per_trial)
        member.load_weights(first)
        make_by_weights(member.module)
        member.average.swap(True)  # as in validation; nothing follows that needs the weights of training
        has_step = getattr(member.module.test_step, "__func__", None) is not LightningModule.test_step
        step = "test_step" if has_step else "validation_step"
        confusion = ConfusionCounter(MOST_CLASSES)
        if isinstance(member.module, ClassificationModule):
            member.module.watch = confusion.update
        metrics = score(member, data, trainer, step, self._look_up)
        if confusion.counts:
            self._tell(Confusion(trial=spec.trial, counts=confusion.counts))
        return {_test_name(name): value for name, value in metrics.items()}

    def _look_up(self) -> None:
        if self._notice.came:
            raise PreemptedError(self._notice.text, saved=False)

    def _samples(self) -> Iterable[Any]:
        """Return the loader of the training samples, of which the test may need to know the labels."""
        spec, evaluator = self._spec, self._spec.evaluator
        if spec.data is None or isinstance(evaluator, ProgramConfig):
            raise ConfigError("evaluator.data: there is none")
        return samples_of(load_job_data(spec.data, spec.base_dir, spec.data_seed, evaluator).of(0))


def _test_name(name: str) -> str:
    return name if name.startswith("test_") else f"test_{name.removeprefix('val_')}"
