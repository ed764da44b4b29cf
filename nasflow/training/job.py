"""A job from its spec to its end: make the members, resume them, train them together, say what happened."""

import dataclasses
import gc
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from nasflow.config import DataConfig
from nasflow.errors import CheckpointError, ConfigError
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.feed import Data, fingerprint, load_data
from nasflow.evaluator.make import make_evaluator
from nasflow.merge.sharing import FrozenPool
from nasflow.seeds import derive_seed
from nasflow.training.checkpoint import CheckpointStore
from nasflow.training.events import Ended, Entered, Epoch, Event, Evicted, Final, Started, finite_or_none
from nasflow.training.forming import Failed, Former
from nasflow.training.lightning import MergedModule, SeededLoader, error_text, make_trainer
from nasflow.training.member import Member
from nasflow.training.planning import planned
from nasflow.training.pruning import make_pruner
from nasflow.training.rng import RngStream
from nasflow.training.roster import Past, Roster
from nasflow.training.saving import JointSaver, Save
from nasflow.training.spec import JobSpec, MemberSpec, trial_dir
from nasflow.training.unit import Unit

logger = logging.getLogger(__name__)

_TOLD = ("epoch", "history", "seconds", "parameters", "finished", "stopped_early", "pruned")


class TrainingJob:
    """Trains the members of one spec below `root`, telling each event to `tell`.

    A member goes on from its newest checkpoint, and what was told of its earlier epochs is told again. The checkpoint
    of an epoch is written before the epoch is told.
    """

    def __init__(self, spec: JobSpec, root: Path, tell: Callable[[Event], None]):
        self._spec = spec
        self._root = root
        self._tell = tell
        self._saver = JointSaver()

    def run(self) -> None:
        """From init to exit. An exception from here is the whole job's; a member's own never gets this far."""
        gc.freeze()  # what is there outlives the job; collections need not look through it
        states, lost = self._load()
        roster = self._roster(states)
        anything_left = roster.open_turn()
        unfinished = [trial for trial, state in states.items() if state is None or not state["finished"]]
        waiting = [trial for trial in unfinished if trial not in roster.turn]
        epochs = {trial: state["epoch"] if state else 0 for trial, state in states.items()}
        self._tell(Started(resumed=epochs, waiting=waiting))
        for trial, error in lost.items():
            self._tell(Evicted(trial=trial, epoch=0, error=error_text(error)))
        for trial, state in states.items():
            if state is not None:
                self._retell(trial, state)
        if anything_left:
            self._fit(roster, waiting)
        self._tell(Ended())

    def _load(self) -> tuple[dict[int, dict[str, Any] | None], dict[int, CheckpointError]]:
        """What is told of each trial's newest state, None for a new one, and the errors of those that can't be read."""
        states: dict[int, dict[str, Any] | None] = {}
        lost: dict[int, CheckpointError] = {}
        for spec in self._spec.members:
            try:
                state = self._store(spec.trial).load_newest()
            except CheckpointError as error:
                lost[spec.trial] = error
            else:
                states[spec.trial] = None if state is None else {key: state[key] for key in _TOLD}
        return states, lost

    def _roster(self, states: Mapping[int, dict[str, Any] | None]) -> Roster:
        past = {
            trial: Past(state["history"], state["parameters"], ended=state["finished"])
            for trial, state in states.items()
            if state is not None
        }
        for peer in self._spec.peers:
            history = [{name: math.nan if value is None else value for name, value in m.items()} for m in peer.history]
            past[peer.trial] = Past(history, peer.parameters, ended=not peer.failed, failed=peer.failed)
        pruner = make_pruner(self._spec.pruner, self._spec.objectives, self._spec.base_dir)
        return Roster(sorted(past.keys() | states.keys()), self._spec.places, pruner, past)

    def _fit(self, roster: Roster, waiting: Sequence[int]) -> None:
        data = load_job_data(self._spec.data, self._spec.base_dir, self._spec.data_seed)
        specs = {spec.trial: spec for spec in [*self._spec.members, *self._spec.peers]}
        frozen = FrozenPool()
        limits: dict[int, int] = {}
        former = Former(self._spec.merge, self._spec.base_dir, limits)

        def build(trial: int) -> Member | None:
            if trial in waiting:
                self._tell(Entered(trial=trial))
            try:
                member = make_member(self._spec, specs[trial])
                frozen.share(member.module)
                return member
            except (Exception, SystemExit) as error:  # a candidate that can't be built is that trial's own failure
                self._tell(Evicted(trial=trial, epoch=0, error=error_text(error)))
                return None

        def rebuild(trial: int) -> Member | None:
            if self._spec.merge.fuse == "never" or not self._store(trial).epochs():
                return None
            member = make_member(self._spec, specs[trial])
            frozen.share(member.module)
            return member

        def form(members: Sequence[Member], batch: Any, failed: Failed) -> list[Unit]:
            units = former.form(members, batch, failed)
            self._tell(planned(units, former))
            return units

        def on_start(member: Member) -> None:
            state = self._store(member.number).load_newest()
            if state is not None:
                member.load_state_dict(state)

        def on_evict(member: Member, error: str) -> None:
            self._tell(Evicted(trial=member.number, epoch=member.finished_epochs + 1, error=error))

        def on_broken(members: list[Member], error: Exception) -> None:
            numbers = [member.number for member in members]
            logger.warning("trials %s go on in smaller groups, for together they failed", numbers, exc_info=error)
            for member in members:
                limits[member.number] = max(1, len(members) // 2)
                member.load_state_dict(self._store(member.number).load(max(self._store(member.number).epochs())))
                roster.rewind(member.number, member.finished_epochs)

        module = MergedModule(
            roster,
            data,
            build=build,
            on_start=on_start,
            save=self._save,
            on_epoch=self._end_of_epoch,
            on_evict=on_evict,
            form=form,
            rebuild=rebuild,
            on_broken=on_broken,
        )
        trainer = make_trainer(self._spec.evaluator.precision)
        trainer.fit(module, train_dataloaders=data.train, val_dataloaders=data.validation)

    def _save(self, members: Sequence[Member], failed: Failed) -> None:
        every = self._spec.checkpoint.every_epochs
        ended = [member for member in members if member.finished]
        going_on = [member for member in members if not member.finished and member.finished_epochs % every == 0]
        for due in (ended, going_on):  # apart: the first are kept for good, and would keep the others' state with them
            saves = [Save(self._store(member.number), member.finished_epochs, member.state_dict) for member in due]
            for position, error in self._saver.save(saves).items():
                failed(due[position], error)

    def _end_of_epoch(self, member: Member) -> None:
        epoch = member.finished_epochs
        self._tell_epoch(member.number, epoch, member.history[-1], member.seconds[-1], replayed=False)
        if member.finished:
            ended_by = (member.stopped_early, member.pruned)
            self._tell_final(member.number, member.history, member.parameters, *ended_by)

    def _retell(self, trial: int, state: dict[str, Any]) -> None:
        for index, (metrics, seconds) in enumerate(zip(state["history"], state["seconds"], strict=True)):
            self._tell_epoch(trial, index + 1, metrics, seconds, replayed=True)
        if state["finished"]:
            ended_by = (state["stopped_early"], state["pruned"])
            self._tell_final(trial, state["history"], state["parameters"], *ended_by)

    def _tell_epoch(self, trial: int, epoch: int, metrics: dict[str, float], seconds: float, replayed: bool) -> None:
        finite = {name: finite_or_none(value) for name, value in metrics.items()}
        self._tell(Epoch(trial=trial, epoch=epoch, metrics=finite, seconds=seconds, replayed=replayed))

    def _tell_final(
        self, trial: int, history: list[dict[str, float]], parameters: int, stopped_early: bool, pruned: bool
    ) -> None:
        metrics = {name: value for name, value in history[-1].items() if finite_or_none(value) is not None}
        metrics["parameters"] = float(parameters)
        epochs = len(history)
        self._tell(Final(trial=trial, epochs=epochs, metrics=metrics, stopped_early=stopped_early, pruned=pruned))

    def _store(self, trial: int) -> CheckpointStore:
        return CheckpointStore(trial_dir(self._root, trial), self._spec.checkpoint.keep)


def make_member(job: JobSpec, spec: MemberSpec) -> Member:
    """Build one member, drawing its initial weights from its own stream."""
    rng = RngStream(spec.seed, _device())
    space = candidate_space(job.space, job.evaluator, job.base_dir)
    with rng:
        candidate = space.build(spec.architecture)
        module = make_evaluator(candidate.config, job.base_dir).module(candidate.model)
    if fingerprint(candidate.config.data) != fingerprint(job.data):
        raise ConfigError(f"trial {spec.trial} asks for other data than its job: {fingerprint(candidate.config.data)}")
    return Member(spec.trial, module, candidate, rng)


def load_job_data(config: DataConfig, base_dir: Path, seed: int) -> Data:
    """The data with an order that follows from `seed` and the epoch, whoever shares the job."""
    with RngStream(derive_seed(seed, "data")):
        data = load_data(config, base_dir)

    def seeded(loader: Iterable[Any], name: str) -> SeededLoader:
        return SeededLoader(loader, derive_seed(seed, name), _device())

    validation = None if data.validation is None else seeded(data.validation, "validation")
    return dataclasses.replace(data, train=seeded(data.train, "train"), validation=validation)


def _device() -> torch.device | None:
    """Where members draw, if not only on the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else None
