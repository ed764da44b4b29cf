"""A trial that is trained by several ranks, as the job's process sees it: its record, and its ranks."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nasflow.evaluator.candidate import Candidate
from nasflow.job.spec import JobSpec, MemberSpec, trial_dir
from nasflow.resumable.multi_node import read_part
from nasflow.training.member.metrics.reporting import record_of
from nasflow.training.program.followed import FollowedTrial
from nasflow.training.program.turn import own_turn
from nasflow.training.wide.link import END, GO_ON
from nasflow.training.wide.parts import earlier_folder
from nasflow.training.wide.rank import Task, train
from nasflow.training.wide.ranks import Ranks


class WideTrial(FollowedTrial):
    """Its ranks save each epoch before they report it; the job's own checkpoint is a record of what was reported.

    Only the last one has the weights, whole, as that of any trial.

    Args:
        job: of the trial.
        spec: the trial.
        root: below which its folder is.
        candidate: what its architecture gives; the model is not used.
    """

    def __init__(self, job: JobSpec, spec: MemberSpec, root: Path, candidate: Candidate):
        super().__init__(spec.trial, candidate.parameters, candidate.epochs)
        self._job, self._spec, self._root = job, spec, root
        self._ranks: Ranks | None = None
        self._meeting = Path()
        self._told: dict[str, Any] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return its record, with the weights if it has ended."""
        record = record_of(self)
        if not self.finished:
            return record
        folder = earlier_folder(self._job, self._root, self.number)
        rest = read_part(folder, self.finished_epochs, "rest")
        kept: dict[str, Any] = {key: rest[key] for key in ("frozen", "fitting", "hooks") if key in rest}
        return {**record, **kept, "module": read_part(folder, self.finished_epochs, "model")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a saved state."""
        self.load_record(state)

    def train_epoch(self, look_up: Callable[[], None]) -> dict[str, float]:
        """Return the metrics of the next epoch, once all ranks have saved it.

        Args:
            look_up: called while it waits; what it raises ends the wait.

        Raises:
            TrialError: a rank has failed.
            InfrastructureError: ranks have lost each other, or those of an earlier job do not end.
        """
        if self._ranks is None:
            self._ranks = self._start(look_up)
        while (told := self._ranks.receive(look_up))["epoch"] <= self.finished_epochs:
            self._ranks.answer(GO_ON)  # trained again, because no later one could be read
        self._told = told
        self.seconds.append(told["seconds"])
        metrics: dict[str, float] = told["metrics"]
        return metrics

    def end_epoch(self, metrics: dict[str, float] | None) -> None:
        """Take the metrics of an epoch."""
        self.history.append(metrics or {})
        self.finished_epochs += 1
        self.finished, self.stopped_early = self._told["finished"], self._told["stopped_early"]

    def go_on(self) -> None:
        """Let its ranks go on, or end."""
        if self._ranks is not None:
            self._ranks.answer(END if self.finished else GO_ON)
            if self.finished:
                self._ranks.leave()

    def close(self) -> None:
        """End its ranks."""
        if self._ranks is not None:
            self._ranks.end()
            self._ranks = None
            shutil.rmtree(self._meeting, ignore_errors=True)

    def _start(self, look_up: Callable[[], None]) -> Ranks:
        self._meeting = Path(tempfile.mkdtemp(prefix="nasflow-ranks-"))
        task = Task(self._job, self._spec, self._root, self._meeting / "store")
        with own_turn(trial_dir(self._root, self.number) / ".ranks.lock", look_up):  # which they hold to their ends
            return Ranks(task.parallel.devices, lambda rank, link: train(task, rank, link), self.finished_epochs)
