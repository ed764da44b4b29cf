"""A job from its spec to its end: make the members, resume them, train them together, say what happened."""

import dataclasses
import gc
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from nasflow.config import DataConfig, Objective
from nasflow.errors import CheckpointError, ConfigError, InfrastructureError
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.feed import Data, fingerprint, load_data
from nasflow.evaluator.make import make_evaluator
from nasflow.merge.sharing import FrozenPool
from nasflow.seeds import derive_seed
from nasflow.training import room
from nasflow.training.background import Background
from nasflow.training.checkpoint import CheckpointStore
from nasflow.training.events import Alert, Ended, Entered, Epoch, Event, Evicted, Final, Started, finite_or_none
from nasflow.training.forming import Failed, Former
from nasflow.training.lightning import MergedModule, SeededLoader, error_text, make_trainer
from nasflow.training.member import Member
from nasflow.training.planning import planned
from nasflow.training.pruning import make_pruner
from nasflow.training.rng import RngStream
from nasflow.training.roster import Past, Roster
from nasflow.training.saving import JointSaver, Save, Taken
from nasflow.training.spec import JobSpec, MemberSpec, trial_dir
from nasflow.training.unit import Unit

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Unsaved:
    """The last checkpoint of a trial, for which there was no room, and what is to be told when there is."""

    part: Taken
    final: Final


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
        self._last_saves: dict[int, float] = {}
        self._background = Background("checkpoints")
        self._unsaved: list[_Unsaved] = []
        self._has_room = True

    def run(self) -> None:
        """From init to exit. An exception from here is the whole job's; a member's own never gets this far."""
        gc.freeze()  # what is there outlives the job; collections need not look through it
        states = {spec.trial: self._newest(spec.trial) for spec in self._spec.members}
        roster = self._roster(states)
        anything_left = roster.open_turn()
        unfinished = [trial for trial, state in states.items() if state is None or not state["finished"]]
        waiting = [trial for trial in unfinished if trial not in roster.turn]
        epochs = {trial: state["epoch"] if state else 0 for trial, state in states.items()}
        self._tell(Started(resumed=epochs, waiting=waiting))
        for trial, state in states.items():
            if state is not None:
                self._retell(trial, state)
        try:
            if anything_left:
                self._fit(roster, waiting)
            self._background.wait()
            self._save_the_rest()
        finally:
            self._background.close()
        self._tell(Ended())

    def _newest(self, trial: int) -> dict[str, Any] | None:
        """A trial's newest state; None for a new one, and for one of which nothing can be read any more."""
        try:
            return self._store(trial).load_newest()
        except CheckpointError as error:
            logger.warning("trial %s begins anew, for none of its checkpoints can be read: %s", trial, error)
            self._store(trial).clear()
            return None

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
            state = self._newest(member.number)
            if state is not None:
                member.load_state_dict(state)

        def on_evict(member: Member, error: str) -> None:
            evicted = Evicted(trial=member.number, epoch=member.finished_epochs + 1, error=error)
            self._background.do(lambda: self._tell(evicted))  # after its last epoch

        def on_broken(members: list[Member], error: Exception) -> None:
            numbers = [member.number for member in members]
            logger.warning("trials %s go on in smaller groups, for together they failed", numbers, exc_info=error)
            self._background.wait()
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
            on_evict=on_evict,
            form=form,
            rebuild=rebuild,
            on_broken=on_broken,
        )
        trainer = make_trainer(self._spec.evaluator.precision)
        trainer.fit(module, train_dataloaders=data.train, val_dataloaders=data.validation)

    def _save(self, members: Sequence[Member], failed: Failed) -> None:
        """Take copies of the states that are due; while they are written, and then told of, training goes on."""
        self._background.wait()  # at most one epoch is on its way
        ended = [member for member in members if member.finished]
        going_on = [member for member in members if not member.finished]
        for some in (ended, going_on):  # apart: the first are kept for good, and would keep the others' state with them
            due = [member for member in some if self._is_due(member)]
            saves = [self._as_save(member) for member in due]
            parts, errors = self._saver.take(saves)
            for position, error in errors.items():
                failed(due[position], error)
            lost = {due[position] for position in errors}
            told = {member.number: self._events_of(member) for member in some if member not in lost}
            trials = [member.number for member in due]
            self._background.do(partial(self._commit, parts, trials, told))

    def _is_due(self, member: Member) -> bool:
        config, epoch, now = self._spec.checkpoint, member.finished_epochs, time.monotonic()
        last = self._last_saves.setdefault(member.number, now)
        late = config.every_minutes is not None and now - last >= 60 * config.every_minutes
        if not (member.finished or late or epoch % config.every_epochs == 0):
            return False
        self._last_saves[member.number] = now
        return True

    def _as_save(self, member: Member) -> Save:
        ranking = _ranking(self._spec.checkpoint.best, member.history)
        return Save(self._store(member.number), member.finished_epochs, member.state_dict, ranking)

    def _commit(self, parts: Sequence[Taken], trials: Sequence[int], told: Mapping[int, list[Event]]) -> None:
        """Write what was taken of `trials`, then tell what became of them."""
        for part in parts:
            errors = self._saver.write(part)
            self._note_room(errors, part)
            for position in errors:
                final = [event for event in told.get(trials[position], []) if isinstance(event, Final)]
                if final:  # nobody is to hear of it before its weights are safe
                    told[trials[position]].remove(final[0])
                    self._unsaved.append(_Unsaved(part.only(position), final[0]))
        for events in told.values():
            for event in events:
                self._tell(event)

    def _note_room(self, errors: Mapping[int, BaseException], part: Taken) -> None:
        if errors and self._has_room:
            text = f"checkpoints can't be saved: {next(iter(errors.values()))}; training goes on without, make room"
            logger.error(text)
            self._tell(Alert(text=text))
        elif part.places and not errors and not self._has_room:
            logger.info("checkpoints are saved again")
        self._has_room = not errors if part.places else self._has_room

    def _save_the_rest(self) -> None:
        """Wait for room for the last checkpoints of trials that have ended.

        Raises:
            InfrastructureError: there was none for long.
        """
        deadline = time.monotonic() + room.SECONDS
        while self._unsaved:
            errors = {unsaved.final.trial: self._saver.write(unsaved.part) for unsaved in self._unsaved}
            for unsaved in list(self._unsaved):
                if not errors[unsaved.final.trial]:
                    self._unsaved.remove(unsaved)
                    self._tell(unsaved.final)
            if self._unsaved and time.monotonic() > deadline:
                trials = [unsaved.final.trial for unsaved in self._unsaved]
                left = next(iter(errors[trials[0]].values()))
                raise InfrastructureError(
                    f"the last checkpoints of trials {trials} can't be saved in {trial_dir(self._root, trials[0])}: "
                    f"{left}; make room there and start again"
                )
            if self._unsaved:
                time.sleep(room.POLL)

    def _events_of(self, member: Member) -> list[Event]:
        """What is to be told of a member after an epoch."""
        if not member.finished_epochs:
            return []
        told: list[Event] = [
            _epoch_of(member.number, member.finished_epochs, member.history[-1], member.seconds[-1], replayed=False)
        ]
        if member.finished:
            told.append(
                _final_of(member.number, member.history, member.parameters, member.stopped_early, member.pruned)
            )
        return told

    def _retell(self, trial: int, state: dict[str, Any]) -> None:
        for index, (metrics, seconds) in enumerate(zip(state["history"], state["seconds"], strict=True)):
            self._tell(_epoch_of(trial, index + 1, metrics, seconds, replayed=True))
        if state["finished"]:
            ended_by = (state["stopped_early"], state["pruned"])
            self._tell(_final_of(trial, state["history"], state["parameters"], *ended_by))

    def _store(self, trial: int) -> CheckpointStore:
        return CheckpointStore(trial_dir(self._root, trial), self._spec.checkpoint.keep)


def _ranking(best: Objective | None, history: Sequence[Mapping[str, float]]) -> list[int]:
    """Epochs, the best first."""
    if best is None:
        return []
    sign = -1.0 if best.direction == "maximize" else 1.0
    known = [(sign * value, epoch) for epoch, m in enumerate(history, 1) if (value := m.get(best.metric)) is not None]
    return [epoch for _, epoch in sorted(known)]


def _epoch_of(trial: int, epoch: int, metrics: Mapping[str, float], seconds: float, replayed: bool) -> Epoch:
    finite = {name: finite_or_none(value) for name, value in metrics.items()}
    return Epoch(trial=trial, epoch=epoch, metrics=finite, seconds=seconds, replayed=replayed)


def _final_of(
    trial: int, history: Sequence[Mapping[str, float]], parameters: int, stopped_early: bool, pruned: bool
) -> Final:
    metrics = {name: value for name, value in history[-1].items() if finite_or_none(value) is not None}
    metrics["parameters"] = float(parameters)
    epochs = len(history)
    return Final(trial=trial, epochs=epochs, metrics=metrics, stopped_early=stopped_early, pruned=pruned)


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
