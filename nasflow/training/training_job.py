"""A job from its spec to its end: make the members, resume them, train them together, say what happened."""

import copy
import dataclasses
import gc
import logging
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer

from nasflow.config.search import DataConfig
from nasflow.errors import ConfigError, SharedLayerError
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.data_source import Data, fingerprint, load_data
from nasflow.evaluator.lazy_layers import first_batch
from nasflow.evaluator.make import make_evaluator
from nasflow.job.events import Ended, Entered, Event, Evicted, Started
from nasflow.job.spec import JobSpec, MemberSpec
from nasflow.resumable.job import Job, JobRunner, State
from nasflow.seeds import derive_seed
from nasflow.space.lazy_layers import lazy_layers
from nasflow.space.shared_layers import Owners
from nasflow.training.batch_runs import training_batches
from nasflow.training.loop import MergedModule, error_text, make_trainer
from nasflow.training.member.lazy_layers import complete_member
from nasflow.training.member.member import Member
from nasflow.training.member.reporting import replayed
from nasflow.training.member.rng import RngStream
from nasflow.training.member_checkpoints import MemberCheckpoints
from nasflow.training.schedule.pruners import make_pruner
from nasflow.training.schedule.turns import Past, Roster
from nasflow.training.seeded_loader import SeededLoader
from nasflow.training.unit.base import DiffersError, Unit
from nasflow.training.unit.grouping import Failed, Former
from nasflow.training.unit.reporting import planned

logger = logging.getLogger(__name__)


_KEPT = ("epoch", "history", "seconds", "parameters", "finished", "stopped_early", "pruned")
_OWNERS = Owners()  # jobs of the debug service come one after the other in one process


class TrainingJob:
    """Trains the members of one spec below `root`, telling each event to `tell`.

    A member goes on from its newest checkpoint, and what was told of its earlier epochs is told again. The checkpoint
    of an epoch is written before the epoch is told. As a `Job`, whose epochs are the turns of a roster, it is driven by
    Lightning's loop.
    """

    def __init__(self, spec: JobSpec, root: Path, tell: Callable[[Event], None]):
        self._spec = spec
        self._root = root
        self._tell = tell
        self._checkpoints = MemberCheckpoints(spec, root, tell)

    def run(self) -> None:
        """From init to exit. An exception from here is the whole job's; a member's own never gets this far."""
        gc.freeze()  # what is there outlives the job; collections need not look through it
        job = Job(
            init=[self._load], epoch=[self._save], exit=[self._end], stop=[lambda state: not state["roster"].turn]
        )
        runner, state = JobRunner(job), State()
        runner.begin(state)
        try:
            if not runner.is_over(state):
                self._fit(state, runner)
            runner.finish(state)
        finally:
            self._checkpoints.close()

    def _load(self, state: State) -> None:
        """Look where each trial stands, and tell it."""
        past = {spec.trial: _without_tensors(self._checkpoints.newest(spec.trial)) for spec in self._spec.members}
        state["roster"] = roster = self._roster(past)
        roster.open_turn()
        unfinished = [trial for trial, saved in past.items() if saved is None or not saved["finished"]]
        state["waiting"] = waiting = [trial for trial in unfinished if trial not in roster.turn]
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

    def _fit(self, state: State, runner: JobRunner) -> None:
        roster, waiting = state["roster"], state["waiting"]
        data = load_job_data(self._spec.data, self._spec.base_dir, self._spec.data_seed)
        specs = {spec.trial: spec for spec in [*self._spec.members, *self._spec.peers]}
        trainer = make_trainer(self._spec.evaluator.precision)
        maker = MemberMaker(self._spec, data, trainer)
        limits: dict[int, int] = {}
        former = Former(self._spec.merge, self._spec.base_dir, limits)

        def build(trial: int) -> Member | None:
            if trial in waiting:
                gc.collect()  # a module and its trainer refer to each other: the memory of who left is not free before
                self._tell(Entered(trial=trial))
            try:
                member = maker.make(specs[trial])
            except (Exception, SystemExit) as error:  # a candidate that can't be built is that trial's own failure
                self._tell(Evicted(trial=trial, epoch=0, error=error_text(error)))
                return None
            self._refuse_shared(member)
            return member

        def rebuild(trial: int) -> Member | None:
            if self._spec.merge.fuse == "never" or not self._checkpoints.knows(trial):
                return None
            return maker.make(specs[trial])

        def form(members: Sequence[Member], batch: Any, failed: Failed) -> list[Unit]:
            units = former.form(members, batch, failed)
            self._tell(planned(units, former))
            return units

        def on_start(member: Member) -> None:
            saved = self._checkpoints.newest(member.number)
            if saved is not None:
                member.load_state_dict(saved)

        def on_evict(member: Member, error: str) -> None:
            evicted = Evicted(trial=member.number, epoch=member.finished_epochs + 1, error=error)
            self._checkpoints.tell_later(evicted)

        def on_broken(members: list[Member], error: Exception) -> None:
            if not isinstance(error, DiffersError):  # the former knows who that is
                numbers = [member.number for member in members]
                logger.warning("trials %s go on in smaller groups, for together they failed", numbers, exc_info=error)
                limits.update(dict.fromkeys(numbers, max(1, len(members) // 2)))
            self._checkpoints.wait()
            for member in members:
                on_start(member)
                roster.rewind(member.number, member.finished_epochs)

        def end_epoch(members: Sequence[Member], failed: Failed) -> None:
            state["trained"] = members, failed
            runner.run_epoch(state)
            del state["trained"]

        module = MergedModule(
            roster,
            data,
            build=build,
            on_start=on_start,
            save=self._checkpoints.save,
            end_epoch=end_epoch,
            on_evict=on_evict,
            form=form,
            rebuild=rebuild,
            on_broken=on_broken,
        )
        trainer.fit(module, train_dataloaders=training_batches(data), val_dataloaders=data.validation)

    def _refuse_shared(self, member: Member) -> None:
        """Raise SharedLayerError if another trial of this process trains, or trained, a layer of this one."""
        shared = _OWNERS.claim(member.module, (self._root, member.number))
        if shared is None:
            return
        root, other = shared.owner
        both = f"trial {other} of another search in this process and trial {member.number}"
        if root == self._root:
            both = f"trials {other} and {member.number}"
        raise SharedLayerError(
            f"{both} of {self._spec.space.target} would train the same {shared.what}, which is made outside of what "
            "builds them; make it within build(pick), or in the evaluator's module, or freeze it by "
            "requires_grad_(False) and eval()"
        )


def _without_tensors(saved: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if saved is None else {key: saved[key] for key in _KEPT}


class MemberMaker:
    """Makes the members of a job: lazy layers have their sizes.

    Args:
        job: whose members they are.
        data: what they are fed.
        trainer: the job's.
    """

    def __init__(self, job: JobSpec, data: Data, trainer: Trainer):
        self._job = job
        self._data = data
        self._trainer = trainer

    def make(self, spec: MemberSpec) -> Member:
        """A member before its training. It does not depend on which others are made."""
        member = make_member(self._job, spec)
        if lazy_layers(member.module):
            complete_member(member, make_member(self._job, spec), self._first_batch, self._trainer)
        return member

    @cached_property
    def _first_batch(self) -> Any:
        """Of the first epoch, whichever is trained."""
        loader = copy.copy(self._data.train)
        if isinstance(loader, SeededLoader):
            loader.epoch = 0
        with RngStream(derive_seed(self._job.data_seed, "transfer"), _device()):
            return first_batch(dataclasses.replace(self._data, train=loader), self._trainer.strategy.root_device)


def make_member(job: JobSpec, spec: MemberSpec) -> Member:
    """Build one member, drawing its initial weights from its own stream. Lazy layers stay without."""
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
