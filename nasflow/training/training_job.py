"""A job from its spec to its end: make the members, resume them, train them together, report what happened."""

import copy
import dataclasses
import gc
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import Trainer

from nasflow.clean_text import error_message, error_text
from nasflow.config.evaluator.training import LimitBatchesConfig
from nasflow.config.search import DataConfig, ProgramConfig
from nasflow.errors import ConfigError, JobError, PreemptedError, SharedLayerError
from nasflow.evaluator.callbacks import make_callbacks
from nasflow.evaluator.candidate import candidate_space
from nasflow.evaluator.data_source import Data, fingerprint, load_data
from nasflow.evaluator.lazy_layers import first_batch
from nasflow.evaluator.make import make_evaluator
from nasflow.gc_control import frozen
from nasflow.job.events import Ended, Entered, Event, Evicted, Started
from nasflow.job.spec import JobSpec, MemberSpec, stop_mark
from nasflow.resumable.job import Job, JobRunner, State
from nasflow.seeds import derive_seed
from nasflow.space.lazy_layers import lazy_layers
from nasflow.space.shared_layers import Owners
from nasflow.training.driver import Driver
from nasflow.training.lightning_loop import make_trainer, run
from nasflow.training.member.lazy_layers import complete_member
from nasflow.training.member.member import Member
from nasflow.training.member.reporting import must_stop, replayed
from nasflow.training.member.rng import RngStream
from nasflow.training.member_checkpoints import MemberCheckpoints
from nasflow.training.preemption import Notice
from nasflow.training.schedule.pruners import make_pruner
from nasflow.training.schedule.turns import Past, Roster
from nasflow.training.seeded_loader import SeededLoader
from nasflow.training.unit.base import DiffersError, Unit, guarding
from nasflow.training.unit.grouping import Former
from nasflow.training.unit.reporting import measured, planned

logger = logging.getLogger(__name__)


Tell = Callable[[Event], None]

_KEPT = ("epoch", "history", "seconds", "parameters", "finished", "stopped_early", "pruned")
_OWNERS = Owners()  # jobs of the debug service come one after the other in one process


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
        driver = _JobDriver(self._spec, self._root, state, runner, self._checkpoints)
        with driver.excused():
            run(driver)

    def _load(self, state: State) -> None:
        """Find out what each trial has finished, and report it."""
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


def _without_tensors(saved: dict[str, Any] | None) -> dict[str, Any] | None:
    return None if saved is None else {key: saved[key] for key in _KEPT}


class SpecDriver(Driver):
    """Drives the members of a spec, in the units that its merge section asks for.

    Attributes:
        former: forms the units.
        limits: the most members that a unit of a trial may have, where a larger one has failed.
    """

    def __init__(self, spec: JobSpec, roster: Roster):
        if spec.data is None or isinstance(spec.evaluator, ProgramConfig):
            raise ConfigError("evaluator.data: there is none, so nasflow can't train the job's members")
        trainer = make_trainer(spec.evaluator.precision)
        super().__init__(
            roster, load_job_data(spec.data, spec.base_dir, spec.data_seed, spec.evaluator.batch_limits), trainer
        )
        self.limits: dict[int, int] = {}
        self.former = Former(spec.merge, spec.base_dir, self.limits, spec.kernel_costs)
        self._maker = MemberMaker(spec, self.data, trainer)
        self._specs = {member.trial: member for member in [*spec.members, *spec.peers]}

    def build(self, number: int) -> Member | None:
        """Return the member of a trial; if it can't be built, record that and return None.

        Raises:
            InfrastructureError: nobody's fault.
        """
        try:
            return self.make(number)
        except (Exception, SystemExit) as error:  # a candidate that can't be built is that trial's own failure
            self.refuse_to_blame(error)
            self.evicted(number, 0, error_text(error))
            return None

    def make(self, number: int) -> Member:
        """Return the member of a trial before its training. Raises whatever its space or evaluator raises."""
        return self._maker.make(self._specs[number])

    def form(self, members: Sequence[Member], batch: Any) -> list[Unit]:
        """Return units of the members, merged where that is possible and faster."""
        return self.former.form(members, batch, self.fail)


class _JobDriver(SpecDriver):
    """Drives a job's members from and to their checkpoints, and reports what becomes of them.

    Args:
        state: of the job, with its `roster` and the `waiting` trials, which enter later.
        runner: runs the steps of a turn's end.
    """

    def __init__(self, spec: JobSpec, root: Path, state: State, runner: JobRunner, checkpoints: MemberCheckpoints):
        super().__init__(spec, state["roster"])
        self._spec, self._root, self._state, self._runner = spec, root, state, runner
        self._checkpoints = checkpoints
        self._notice = Notice()
        self._has_ended_epochs = False

    def open_turn(self) -> bool:
        """Go on to the next epoch; members that are not all at the same batch of it train it from the start."""
        going = super().open_turn()
        if len({member.begun for member in self.turn}) > 1:
            begun = [member for member in self.turn if member.begun]
            self._checkpoints.drop_within([member.number for member in begun])
            self._take_back(begun)
            self.turn = [member for member in self.turn if member.finished_epochs == self.roster.epoch]
        return going

    def start_epoch(self) -> None:
        """Call the hooks before the first batch."""
        self._notice.listen()
        super().start_epoch()

    def look_up(self, validating: bool = False) -> None:
        """End the job if its process was asked to end, after saving the running epoch's state if that is wanted.

        Raises:
            PreemptedError: it was asked to end.
        """
        keeps = self._spec.checkpoint.on_preempt
        if not self._notice.came or (validating and keeps):  # then the epoch's end is near, which is saved
            return
        self._checkpoints.wait()
        saved = keeps and self._save_within()
        where = f"; batch {self._batches} of its epoch is saved" if saved else ""
        raise PreemptedError(f"the job's process was asked to end (SIGTERM){where}", saved or self._has_ended_epochs)

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Attribute what fails to the end that was asked of the job, of which its loaders' processes may know, too."""
        try:
            yield
        except JobError:
            raise
        except Exception as error:
            if not self._notice.came:
                raise
            text = f"the job's process was asked to end (SIGTERM): {error_message(error)}"
            raise PreemptedError(text, self._has_ended_epochs) from error

    def build(self, number: int) -> Member | None:
        """Return the member of a trial, after reporting that it enters if it had to wait.

        Raises:
            SharedLayerError: another trial of this process trains, or trained, a layer of this one.
        """
        if number in self._state["waiting"]:
            gc.collect()  # a module and its trainer refer to each other: only this frees those that have left
            self._checkpoints.tell(Entered(trial=number))
        member = super().build(number)
        if member is not None:
            self._refuse_shared(member)
        return member

    def rebuild(self, number: int) -> Member | None:
        """Return a member that has left as it was when it came; None if its training was never saved."""
        if self._spec.merge.fuse == "never" or not self._checkpoints.knows(number):
            return None
        return self.make(number)

    def restore(self, member: Member) -> None:
        """Load a member's newest checkpoint, if there is one."""
        saved = self._checkpoints.newest(member.number)
        if saved is not None:
            member.load_state_dict(saved)

    def form(self, members: Sequence[Member], batch: Any) -> list[Unit]:
        """Return units of the members and report them."""
        units = super().form(members, batch)
        self._checkpoints.tell(planned(units, self.former))
        for event in measured(self.former):  # also by what was reported just now
            self._checkpoints.tell(event)
        return units

    def save(self, members: Sequence[Member]) -> None:
        """Save members that enter the job to train from the start."""
        self._checkpoints.save(members, self.fail)

    def save_turn(self, members: Sequence[Member]) -> None:
        """Run the job's steps after a turn, which save the members."""
        self._has_ended_epochs = True
        self._state["trained"] = members, self.fail
        self._runner.run_epoch(self._state)
        del self._state["trained"]

    def evicted(self, number: int, epoch: int, error: str) -> None:
        """Report that a trial failed, after the epochs it finished."""
        stop_mark(self._root, number).unlink(missing_ok=True)
        event = Evicted(trial=number, epoch=epoch, error=error)
        if epoch:
            self._checkpoints.tell_later(event)
        else:  # it never trained, so none of its epochs is being saved
            self._checkpoints.tell(event)

    def must_stop(self, member: Member) -> bool:
        """Whether a member has trained for longer than a trial may, or someone has asked for its end; report which."""
        told = must_stop(self._spec, self._root, member)
        if told is not None:
            self._checkpoints.tell_later(told)
        return told is not None

    def split(self, members: Sequence[Member], error: Exception) -> None:
        """Take members back to their checkpoints; their next units have at most half as many members."""
        if not isinstance(error, DiffersError):  # the former knows which member that is
            numbers = [member.number for member in members]
            logger.warning("trials %s go on in smaller groups, because together they failed", numbers, exc_info=error)
            self.limits.update(dict.fromkeys(numbers, max(1, len(members) // 2)))
        self._checkpoints.wait()
        self._take_back(members)

    def _take_back(self, members: Sequence[Member]) -> None:
        for member in members:
            with guarding(member, self.fail):
                self.restore(member)
                self.roster.rewind(member.number, member.finished_epochs)

    def _save_within(self) -> bool:
        """Save the members of the turn within their epoch, if that can be done and they have made steps in it."""
        begun = max((member.begun for member in self.turn), default=0)
        if self._batches <= begun or not all(member.can_stop_within(self._batches) for member in self.turn):
            return False
        for unit in self._turning():
            unit.stop_within()
        return self._checkpoints.save_within(self.turn, self._batches)

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


class MemberMaker:
    """Makes the members of a job: lazy layers have their sizes.

    Args:
        job: the job of the members.
        data: what they are trained on.
        trainer: the job's.
    """

    def __init__(self, job: JobSpec, data: Data, trainer: Trainer):
        self._job = job
        self._data = data
        self._trainer = trainer

    def make(self, spec: MemberSpec) -> Member:
        """Return a member before its training. It does not depend on which others are made."""
        member = make_member(self._job, spec)
        if lazy_layers(member.module):
            complete_member(member, make_member(self._job, spec), self._first_batch, self._trainer)
        return member

    @cached_property
    def _first_batch(self) -> Any:
        """The first batch of the first epoch, whichever epoch is trained."""
        loader = copy.copy(self._data.train)
        if isinstance(loader, SeededLoader):
            loader.epoch = 0
        with RngStream(derive_seed(self._job.data_seed, "transfer"), _device()):
            return first_batch(dataclasses.replace(self._data, train=loader), self._trainer.strategy.root_device)


def make_member(job: JobSpec, spec: MemberSpec) -> Member:
    """Build one member, drawing its initial weights from its own stream. Lazy layers have no weights yet."""
    rng = RngStream(spec.seed, _device())
    space = candidate_space(job.space, job.evaluator, job.base_dir)
    with rng:
        candidate = space.build(spec.architecture)
        if fingerprint(candidate.config.data) != fingerprint(job.data):
            raise ConfigError(
                f"trial {spec.trial} asks for other data than its job: {fingerprint(candidate.config.data)}"
            )
        module = make_evaluator(candidate.config, job.base_dir).module(candidate.model)
        callbacks = make_callbacks(candidate.config.callbacks, job.base_dir)
        return Member(spec.trial, module, candidate, rng, callbacks)


def load_job_data(config: DataConfig, base_dir: Path, seed: int, limits: LimitBatchesConfig | None = None) -> Data:
    """Return the data, in an order that depends on `seed` and the epoch only, not on the job's members."""
    return seeded_data(lambda: load_data(config, base_dir), seed, limits)


def seeded_data(load: Callable[[], Data], seed: int, limits: LimitBatchesConfig | None = None) -> Data:
    """Return what `load` gives, in an order that depends on `seed` and the epoch only."""
    limits = limits or LimitBatchesConfig()
    with RngStream(derive_seed(seed, "data")):
        data = load()

    def seeded(loader: Iterable[Any], name: str, limit: int | None) -> SeededLoader:
        return SeededLoader(loader, derive_seed(seed, name), _device(), limit)

    validation = None if data.validation is None else seeded(data.validation, "validation", limits.validation)
    return dataclasses.replace(data, train=seeded(data.train, "train", limits.train), validation=validation)


def _device() -> torch.device | None:
    """The device where members draw random numbers, None if only on the CPU."""
    return torch.device("cuda", 0) if torch.cuda.is_available() else None
