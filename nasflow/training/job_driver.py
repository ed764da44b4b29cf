"""Drives the members of a job: makes them, restores and saves them, and reports what becomes of them."""

import gc
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nasflow.clean_text import error_message, error_text
from nasflow.config.search import ProgramConfig
from nasflow.errors import ConfigError, DataError, JobError, PreemptedError, SharedLayerError
from nasflow.evaluator.loading.data_source import fingerprint
from nasflow.evaluator.loading.folds import ByFold
from nasflow.evaluator.ready_made.unusable import refuse_data
from nasflow.job.events import Entered, Evicted
from nasflow.job.spec import JobSpec, stop_mark
from nasflow.resumable.job import JobRunner, State
from nasflow.space.shared_layers import Owners
from nasflow.training.batches.loading_errors import refuse_ended_worker, why_not_loaded
from nasflow.training.device.devices import Devices
from nasflow.training.device.fault import refuse_fault
from nasflow.training.device.memory import free_failed
from nasflow.training.driver import Driver
from nasflow.training.lightning_loop import make_trainer
from nasflow.training.member.member import Member
from nasflow.training.member.metrics.reporting import must_stop
from nasflow.training.member_checkpoints import MemberCheckpoints
from nasflow.training.member_maker import MemberMaker, load_job_data
from nasflow.training.preemption import Notice
from nasflow.training.repeated import RepeatedTrial, seeded
from nasflow.training.schedule.repeats import members_of
from nasflow.training.schedule.turns import Roster
from nasflow.training.unit.base import CutShortError, DiffersError, Unit, guarding
from nasflow.training.unit.grouping import Former
from nasflow.training.unit.reporting import measured, planned

logger = logging.getLogger(__name__)

_OWNERS = Owners()  # jobs of the debug service come one after the other in one process


class SpecDriver(Driver):
    """Drives the members of a spec, in the units that its merge section asks for.

    Attributes:
        formers: form the units of each device.
        limits: the most members that a unit of a trial may have, where a larger one has failed.
    """

    def __init__(self, spec: JobSpec, roster: Roster):
        if spec.data is None or isinstance(spec.evaluator, ProgramConfig):
            raise ConfigError("evaluator.data: there is none, so nasflow can't train the job's members")
        trainer = make_trainer(spec.evaluator.precision)
        evaluator, self._member_name = spec.evaluator, spec.evaluator.member_name
        data = load_job_data(spec.data, spec.base_dir, spec.data_seed, evaluator)
        devices = Devices(1 + max(member.device for member in [*spec.members, *spec.peers]))
        super().__init__(roster, data, trainer, evaluator.validate_every, devices)
        self.limits: dict[int, int] = {}
        self.formers = [Former(spec.merge, spec.base_dir, self.limits, spec.kernel_costs) for _ in devices.all]
        self._maker = MemberMaker(spec, self.data, trainer, devices=devices)
        self._evaluator, self._target = evaluator, spec.data.target
        self._has_searched_data = fingerprint(evaluator.data) != fingerprint(spec.data)
        self._is_validation_seen = self._has_ended_epochs = False
        self._specs = {
            number: seeded(member, repeat)
            for member in [*spec.members, *spec.peers]
            for repeat, number in enumerate(members_of(member.trial, spec.evaluator.members_per_trial))
        }

    def build(self, number: int) -> Member | None:
        """Return a member; if it can't be built, record that and return None.

        Raises:
            InfrastructureError: nobody's fault.
            DataError: no member can be trained on the first batch, from which lazy layers take their sizes.
        """
        try:
            return self.make(number)
        except DataError:
            raise
        except (Exception, SystemExit) as error:  # a candidate that can't be built is that trial's own failure
            refuse_fault(error)
            self.refuse_to_blame(error)
            self.evicted(number, 0, error_text(error))
            return None

    def make(self, number: int) -> Member:
        """Return a member before its training. Raises whatever its space or evaluator raises."""
        return self._maker.make(self._specs[number], number)

    def form(self, members: Sequence[Member], batch: Any) -> list[Unit]:
        """Return units of the members, merged where that is possible and faster.

        Raises:
            DataError: no member can be trained on such a batch.
        """
        if self._has_trained_nothing:
            self._refuse_data(batch)
        former = self.former_of(members)
        if not isinstance(batch, ByFold):
            return former.form(members, batch, self.fail)
        units: list[Unit] = []
        reasons: dict[int, str] = {}
        for fold, own in enumerate(batch):
            if own is None:
                raise ConfigError(f"evaluator.folds: fold {fold + 1} has no batch to train on")
            here = [member for member in members if member.number % len(batch) == fold]
            units += former.form(here, own, self.fail)
            reasons |= former.reasons
        former.reasons = reasons
        return units

    def validate(self, batch: Any, index: int) -> None:
        """Score every member on a batch. Raises DataError if none can be scored on the first one."""
        if self.turn and not self._is_validation_seen:
            self._refuse_data(batch, validating=True)
            self._is_validation_seen = True
        super().validate(batch, index)

    @property
    def _has_trained_nothing(self) -> bool:
        """Whether no batch has shown that data can be trained on, so that a retry would fail like this."""
        return not (self.roster.epoch or self._batches or self._has_ended_epochs)

    def _refuse_data(self, batch: Any, *, validating: bool = False) -> None:
        """Raise DataError for a batch that fails every trial; searched data, which others may have not, fail theirs."""
        for own in batch if isinstance(batch, ByFold) else [batch]:
            if own is not None and not self._has_searched_data:
                refuse_data(self._evaluator, own, validating=validating)

    def former_of(self, members: Sequence[Member]) -> Former:
        """Return what forms the units of the device that these members train on."""
        return self.formers[members[0].device_index]


class JobDriver(SpecDriver):
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
        self._repeats = spec.evaluator.members_per_trial
        self._trials: dict[int, RepeatedTrial] = {}  # with members in the job; only if they have several
        self._failed: dict[int, int] = {}  # the epochs that a trial has ended, in which all members had
        self._stops: dict[int, bool] = {}  # in this turn, by trial

    def open_turn(self) -> bool:
        """Go on to the next epoch; members that are not all at the same batch of it train it from the start."""
        going = super().open_turn()
        if len({member.begun for member in self.turn}) > 1:
            begun = [member for member in self.turn if member.begun]
            self._checkpoints.drop_within(list({member.trial for member in begun}))
            self._take_back(begun)
            self.turn = [member for member in self.turn if member.finished_epochs == self.roster.epoch]
        return going

    def start_epoch(self) -> None:
        """Call the hooks before the first batch."""
        self._notice.listen()
        super().start_epoch()

    def look_up(self, validating: bool = False) -> None:
        """End the job if it was asked to end, after saving the running epoch's state if that is wanted.

        Raises:
            PreemptedError: it was asked to end.
        """
        keeps = self._spec.checkpoint.on_preempt
        if not self._notice.came or (validating and keeps):  # then the epoch's end is near, which is saved
            return
        self._checkpoints.wait()
        saved = keeps and self._save_within()
        where = f"; batch {self._batches} of its epoch is saved" if saved else ""
        raise PreemptedError(f"{self._notice.text}{where}", saved or self._has_ended_epochs)

    @contextmanager
    def excused(self) -> Iterator[None]:
        """Attribute what fails to the end that was asked of the job, of which its loaders' processes may know, too."""
        try:
            yield
        except JobError:
            raise
        except Exception as error:
            if not self._notice.came:
                refuse_ended_worker(error)
                self._refuse_samples(error)
                raise
            text = f"{self._notice.text}: {error_message(error)}"
            raise PreemptedError(text, self._has_ended_epochs) from error

    def build(self, number: int) -> Member | None:
        """Return a member, after reporting that its trial enters if it had to wait.

        Raises:
            SharedLayerError: another trial of this process trains, or trained, a layer of this one.
        """
        trial = self.roster.trial_of(number)
        if trial in self._failed:  # another of its members could not be built
            return None
        if trial in self._state["waiting"]:
            self._state["waiting"].remove(trial)
            gc.collect()  # a module and its trainer refer to each other: only this frees those that have left
            self._checkpoints.tell(Entered(trial=trial))
        member = super().build(number)
        if member is not None:
            self._refuse_shared(member)
        return member

    def close_turn(self) -> None:
        """End the epoch. Raises ConfigError if the data gave no batch for it."""
        if self.turn and not self._batches:
            self._refuse_empty("train")
        if self.turn and self.validates and self.data.validation is not None and not self._validated:
            self._refuse_empty("validate")
        super().close_turn()

    def rebuild(self, number: int) -> Member | None:
        """Return a member that has left as it was when it came; None if its training was never saved."""
        if self._spec.merge.fuse == "never" or not self._checkpoints.knows(self.roster.trial_of(number)):
            return None
        return self.make(number)

    def restore(self, member: Member) -> None:
        """Load a member's newest checkpoint, if there is one."""
        saved = self._checkpoints.newest(member.trial)
        if self._repeats > 1:
            trial = self._trials.setdefault(member.trial, RepeatedTrial(member.trial, self._repeats))
            trial.add(member)
            if saved is not None:
                trial.load_state_dict(saved)
                saved = trial.part(saved, member)
        if saved is not None:
            member.load_state_dict(saved)

    def clear(self) -> None:
        """Take out the members of trials that failed by another member, as they were when all had ended an epoch."""
        for member in [member for member in self.active if member.trial in self._failed]:
            self.roster.rewind(member.number, min(member.finished_epochs, self._failed[member.trial]))
            self.remove(member)

    def form(self, members: Sequence[Member], batch: Any) -> list[Unit]:
        """Return units of the members and report them."""
        units = super().form(members, batch)
        former = self.former_of(members)
        self._checkpoints.tell(planned(units, former))
        for event in measured(former):  # also by what was reported just now
            self._checkpoints.tell(event)
        return units

    def save(self, members: Sequence[Member]) -> None:
        """Save members that enter the job to train from the start."""
        self._checkpoints.save(self._trials_of(members), self._fail_trial)

    def save_turn(self, members: Sequence[Member]) -> None:
        """Run the job's steps after a turn, which save the members."""
        self._has_ended_epochs = True
        self._stops.clear()
        self._state["trained"] = self._trials_of(members), self._fail_trial
        self._runner.run_epoch(self._state)
        del self._state["trained"]
        for number, trial in list(self._trials.items()):
            if number in self._failed or (trial.is_together and trial.finished):
                del self._trials[number]
            else:
                trial.release()

    def evicted(self, number: int, epoch: int, error: str) -> None:
        """Report that a trial failed, after the epochs it finished."""
        trial = self.roster.trial_of(number)
        if self._repeats > 1:
            if trial in self._failed:
                return
            self._failed[trial] = max(0, epoch - 1)
            error = f"{self._member_name} {number % self._repeats + 1} of {self._repeats}: {error}"
        stop_mark(self._root, trial).unlink(missing_ok=True)
        event = Evicted(trial=trial, epoch=epoch, error=error)
        if epoch:
            self._checkpoints.tell_later(event)
        else:  # it never trained, so none of its epochs is being saved
            self._checkpoints.tell(event)

    def must_stop(self, member: Member) -> bool:
        """Whether a member has trained for longer than a trial may, or someone has asked for its end; report which."""
        if member.trial not in self._stops:  # for all members of the trial
            told = must_stop(self._spec, self._root, self._trials.get(member.trial, member))
            if told is not None:
                self._checkpoints.tell_later(told)
            self._stops[member.trial] = told is not None
        return self._stops[member.trial]

    def split(self, members: Sequence[Member], error: Exception) -> None:
        """Build members again from their checkpoints; their next units have at most half as many members."""
        if not isinstance(error, DiffersError | CutShortError):  # with these it is known which member that is
            numbers = [member.number for member in members]
            trials = sorted({member.trial for member in members})
            logger.warning("trials %s go on in smaller groups, because together they failed", trials, exc_info=error)
            self.limits.update(dict.fromkeys(numbers, max(1, len(members) // 2)))
        if not isinstance(error, DiffersError):
            free_failed(error)
        self._checkpoints.wait()
        self._take_back(members)

    def _refuse_samples(self, error: Exception) -> None:
        """Raise ConfigError if an error says what is wrong with the data, so that it gives not even one batch."""
        if self._has_trained_nothing and (why := why_not_loaded(self._target, error)):
            logger.warning("%s gives no batch", self._target, exc_info=error)
            kind = ConfigError if self._has_searched_data else DataError
            raise kind(f"evaluator.data: {why}") from error

    def _refuse_empty(self, what: str) -> None:
        """Raise ConfigError for data without a batch in this epoch."""
        why = "give loaders that can be iterated again in each epoch: a DataLoader or a list, not a generator"
        if self.roster.epoch == 0:
            why = "let its loader have samples, and without drop_last if they fill no batch"
        where = f" in epoch {self.roster.epoch + 1}" if self.roster.epoch else ""
        target = "" if self._spec.data is None else self._spec.data.target
        raise ConfigError(f"evaluator.data: {target} gives no batch to {what} on{where}; {why}")

    def _take_back(self, members: Sequence[Member]) -> None:
        """Put members built anew in the place of these, as a new process would: their own code may keep anything."""
        for member in members:
            with guarding(member, self.fail):
                again = self.make(member.number)
                self.replace(member, again)
                with guarding(again, self.fail):
                    self.start(again)
                    self.roster.rewind(again.number, again.finished_epochs)

    def _save_within(self) -> bool:
        """Save the members of the turn within their epoch, if that can be done and they have made steps in it."""
        begun = max((member.begun for member in self.turn), default=0)
        if self._batches <= begun or not all(member.can_stop_within(self._batches) for member in self.turn):
            return False
        for unit in self._turning():
            unit.stop_within()
        return self._checkpoints.save_within(self._trials_of(self.turn), self._batches)

    def _trials_of(self, members: Sequence[Member]) -> Sequence[Member | RepeatedTrial]:
        """Return what is saved and reported of members: themselves, or their trials once all members are together."""
        if self._repeats == 1:
            return members
        trials = [self._trials[number] for number in dict.fromkeys(member.trial for member in members)]
        return [trial for trial in trials if trial.number not in self._failed and trial.is_together]

    def _fail_trial(self, failed: Member | RepeatedTrial, error: BaseException) -> None:
        refuse_fault(error)
        if isinstance(failed, Member):
            self.fail(failed, error)
        else:
            self.fail(next(member for member in self.active if member.trial == failed.number), error)

    def _refuse_shared(self, member: Member) -> None:
        """Raise SharedLayerError if another trial of this process trains, or trained, a layer of this one."""
        shared = _OWNERS.claim(member.module, (self._root, member.trial, member.number))
        if shared is None:
            return
        root, other, _ = shared.owner
        both = f"trial {other} of another search in this process and trial {member.trial}"
        if root == self._root and other != member.trial:
            both = f"trials {other} and {member.trial}"
        elif root == self._root:
            both = f"two {self._member_name}s of trial {other}"
        raise SharedLayerError(
            f"{both} of {self._spec.space.target} would train the same {shared.what}, which is made outside of what "
            "builds them; make it within build(pick), or in the evaluator's module, or freeze it by "
            "requires_grad_(False) and eval()"
        )
