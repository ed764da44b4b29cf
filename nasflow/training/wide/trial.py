"""A trial that is trained by several ranks, as the job's process sees it: its record, and its ranks."""

import shutil
import socket
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from nasflow.evaluator.candidate import Candidate
from nasflow.job.spec import INVITATION, JobSpec, MemberSpec, job_dir, trial_dir
from nasflow.resumable.multi_node import read_part
from nasflow.training.member.metrics.reporting import record_of
from nasflow.training.program.followed import FollowedTrial
from nasflow.training.program.turn import own_turn
from nasflow.training.wide.epochs import epoch_files
from nasflow.training.wide.epochs.parts import earlier_folder
from nasflow.training.wide.link import END, GO_ON
from nasflow.training.wide.nodes import slurm_step
from nasflow.training.wide.nodes.meeting import Invitation, Meeting, own_address
from nasflow.training.wide.nodes.other_nodes import OtherNodes, Step
from nasflow.training.wide.nodes.posted import Posted
from nasflow.training.wide.rank import Task, train
from nasflow.training.wide.ranks import Ranks

_MEETING = ".meeting-"


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

    def state_to_save(self) -> dict[str, Any]:
        """Return its record, with the weights if it has ended."""
        record = record_of(self)
        if not self.finished:
            return record
        folder = earlier_folder(trial_dir(self._root, self.number), self._job.generation)
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
            self.pass_over()
        self._told = told
        self.seconds.append(told["seconds"])
        metrics: dict[str, float] = told["metrics"]
        return metrics

    def end_epoch(self, metrics: dict[str, float] | None) -> None:
        """Take the metrics of an epoch."""
        self.history.append(metrics or {})
        self.finished_epochs += 1
        self.finished, self.stopped_early = self._told["finished"], self._told["stopped_early"]
        self.is_ahead = self._told["is_ahead"]

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
        folder = trial_dir(self._root, self.number)
        with own_turn(folder / ".ranks.lock", look_up):  # which those of this machine hold to their ends
            epoch_files.bring(folder)
            others = self._other_nodes(folder, look_up)
            self._meeting = Path(tempfile.mkdtemp(prefix="nasflow-ranks-"))
            task = Task(self._job, self._spec, self._root, self._meeting / "store")
            return Ranks(
                task.parallel.devices, lambda rank, link: train(task, rank, link), self.finished_epochs, others
            )

    def _other_nodes(self, folder: Path, look_up: Callable[[], None]) -> OtherNodes | None:
        parallel = self._job.evaluator.parallel
        if parallel is None or parallel.nodes == 1:
            return None
        for left in folder.glob(f"{_MEETING}*"):  # by a job that was killed
            shutil.rmtree(left, ignore_errors=True)
        own = job_dir(self._root, self._job.job_id)
        with tempfile.TemporaryDirectory(prefix=_MEETING, dir=folder) as meeting_folder:

            def invite(meeting: Meeting) -> Step:
                node = self._job.node
                host = own_address() if node is not None and node.shares_files else socket.gethostname()
                invitation = Invitation(host, meeting.port, meeting.key, self.number, self.finished_epochs)
                if node is not None:
                    return Posted(invitation, own / INVITATION)
                return slurm_step.start(parallel.nodes - 1, invitation, Path(meeting_folder), own / "job.json")

            return OtherNodes(parallel, invite, look_up=look_up)
