"""A job from its spec to its end: resume the members, train them together, report what happened."""

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from nasflow.job.events import Ended, Event, Started
from nasflow.job.spec import JobSpec
from nasflow.resumable.job import Job, JobRunner, State
from nasflow.system.gc_control import frozen
from nasflow.training.job_driver import JobDriver
from nasflow.training.lightning_loop import run
from nasflow.training.member.metrics.reporting import replayed
from nasflow.training.member.trained import PARTS
from nasflow.training.member_checkpoints import MemberCheckpoints
from nasflow.training.repeated import parts_of
from nasflow.training.schedule.pruners import make_pruner
from nasflow.training.schedule.repeats import members_of
from nasflow.training.schedule.turns import Past, Roster

Tell = Callable[[Event], None]

_KEPT = ("epoch", "history", "seconds", "parameters", "finished", "stopped_early", "pruned")


class TrainingJob:
    """Trains the members of one spec below `root`, and calls `tell` with each event.

    A member goes on from its newest checkpoint, and its earlier epochs are reported again. The checkpoint of an epoch
    is written before the epoch is reported. The epochs of this `Job` are the turns of a roster, and Lightning's loop
    drives it.
    """

    def __init__(self, spec: JobSpec, root: Path, tell: Tell):
        self._spec = spec
        self._root = root
        self._tell = tell
        self._checkpoints = MemberCheckpoints(spec, root, tell)

    def run(self) -> None:
        """Run the job to its end. What it raises is the whole job's failure; a member's failure only evicts it."""
        with frozen():
            self._run()

    def _run(self) -> None:
        job = Job(
            init=[self._load], epoch=[self._save], exit=[self._end], stop=[lambda state: not state["roster"].turn]
        )
        runner, state = JobRunner(job), State()
        runner.begin(state)
        try:
            if not runner.is_over(state):
                self.train(state, runner)
            runner.finish(state)
        finally:
            self._checkpoints.close()

    def train(self, state: State, runner: JobRunner) -> None:
        """Train the trials of the state's roster to their ends; `runner` takes the steps of each turn's end."""
        driver = JobDriver(self._spec, self._root, state, runner, self._checkpoints)
        with driver.excused():
            run(driver)
            if driver.turn:  # Lightning skips a loader that is known to have no batch, and the ends of its epochs
                driver.close_turn()  # which says so

    def _load(self, state: State) -> None:
        """Find out what each trial has finished, and report it."""
        past = {spec.trial: self._without_tensors(spec.trial) for spec in self._spec.members}
        state["roster"] = roster = self._roster(past)
        roster.open_turn()
        unfinished = [trial for trial, saved in past.items() if saved is None or not saved["finished"]]
        due = {roster.trial_of(number) for number in roster.turn}
        state["waiting"] = waiting = [trial for trial in unfinished if trial not in due]
        epochs = {trial: saved["epoch"] if saved else 0 for trial, saved in past.items()}
        self._tell(Started(resumed=epochs, waiting=waiting))
        for trial, saved in past.items():
            for event in replayed(trial, saved) if saved else []:
                self._tell(event)

    def _save(self, state: State) -> None:
        self._checkpoints.save(*state["trained"])

    def _end(self, state: State) -> None:
        self._checkpoints.finish()
        self._tell(Ended())

    def _roster(self, states: Mapping[int, dict[str, Any] | None]) -> Roster:
        repeats = self._spec.evaluator.members_per_trial
        past = {
            number: Past(part["history"], part["parameters"], ended=part["finished"])
            for trial, state in states.items()
            if state is not None
            for number, part in zip(members_of(trial, repeats), parts_of(state, repeats), strict=True)
        }
        for peer in self._spec.peers:
            history = [{name: math.nan if value is None else value for name, value in m.items()} for m in peer.history]
            peers = Past(history, peer.parameters, ended=not peer.failed, failed=peer.failed)
            past.update(dict.fromkeys(members_of(peer.trial, repeats), peers))
        pruner = make_pruner(self._spec.pruner, self._spec.objectives, self._spec.base_dir)
        numbers = past.keys() | {number for trial in states for number in members_of(trial, repeats)}
        return Roster(sorted(numbers), self._spec.places, pruner, past, repeats)

    def _without_tensors(self, trial: int) -> dict[str, Any] | None:
        saved = self._checkpoints.newest(trial)
        if saved is None:
            return None
        parts = [{key: part[key] for key in _KEPT} for part in saved.get(PARTS, [])]
        return {key: saved[key] for key in _KEPT} | {PARTS: parts}
