"""The course of a job: members come in, make their steps, end their epochs and leave."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning import Trainer
from torch import nn

from nasflow.autocast import outside_steps
from nasflow.clean_text import error_message, error_text
from nasflow.errors import InfrastructureError
from nasflow.evaluator.loading.data_source import Data
from nasflow.evaluator.loading.folds import own_batch
from nasflow.job import activity
from nasflow.merge.values.frozen_pool import FrozenPool
from nasflow.system.open_files import lacks_files
from nasflow.training.batches.loading_errors import refuse_ended_worker
from nasflow.training.batches.seeded_loader import FoldedLoader, SeededLoader
from nasflow.training.device.devices import Copies, Devices
from nasflow.training.device.fault import refuse_fault
from nasflow.training.device.memory import release_memory
from nasflow.training.member.member import Member
from nasflow.training.schedule.turns import Roster
from nasflow.training.unit.base import DiffersError, SoloUnit, Unit, guarding
from nasflow.training.unit.reasons import views_as_rows

logger = logging.getLogger(__name__)


class Driver(ABC):
    """Trains the members of a job in turns, in units that share each batch.

    A member trains in a turn exactly if that is the next epoch it has not finished, so members at different epochs can
    share a job. A member that fails is evicted and the others go on untouched. A subclass makes the members and decides
    what is done when they start, are saved, fail or are grouped into units.

    Args:
        roster: decides which members have a place and which train in each turn.
        data: what the members are trained and validated on; with folds, those that `Data.of` gives for their numbers.
        trainer: of the whole job.
        validate_every: epochs of a member from one validation to the next.
        devices: of the job, over which its members are spread.

    Attributes:
        active: the members in the job.
        modules: theirs, by trial.
        turn: the members that train in this turn.
    """

    def __init__(
        self, roster: Roster, data: Data, trainer: Trainer, validate_every: int = 1, devices: Devices | None = None
    ):
        self.roster, self.data, self.trainer = roster, data, trainer
        self.devices = devices or Devices(1)
        self._validate_every = validate_every
        self._default_dtype: torch.dtype | None = None  # outside of steps
        self.active: list[Member] = []
        self.modules = nn.ModuleDict()
        self.turn: list[Member] = []
        self._units: list[Unit] = []
        self._broken: set[int] = set()  # trials of units that failed as a whole
        self._frozen = [FrozenPool() for _ in self.devices.all]
        self._batches = 0  # of this epoch, that were trained on; 0 between epochs
        self._validated = 0  # batches of this epoch

    # --- what subclasses provide ---

    @abstractmethod
    def build(self, number: int) -> Member | None:
        """Return the member of a trial that enters the job, or None if it can't be built."""

    @abstractmethod
    def evicted(self, number: int, epoch: int, error: str) -> None:
        """Record that a trial failed in an epoch; 0 if its member could not be built."""

    def rebuild(self, number: int) -> Member | None:
        """Return a member that left before the job was interrupted as it was when it came; None if it never trained."""
        return None

    def restore(self, member: Member) -> None:
        """Load the state a member goes on from, once its optimizer is made."""
        return

    def form(self, members: Sequence[Member], batch: Any) -> list[Unit]:
        """Return units of members of one device for batches like this one, none with members of different folds."""
        return [SoloUnit([member], self.fail) for member in members]

    def must_stop(self, member: Member) -> bool:
        """Whether a member that has ended an epoch, and would train on, is to stop early."""
        return False

    def clear(self) -> None:
        """Called before members of a turn are saved, when those may leave that can't end without others that failed."""
        return

    def save(self, members: Sequence[Member]) -> None:
        """Save members that enter the job to train from the start."""
        return

    def save_turn(self, members: Sequence[Member]) -> None:
        """Save members that have ended an epoch."""
        return

    def look_up(self, validating: bool = False) -> None:
        """Called before each turn and in an epoch before further batches; what it raises ends the job."""
        return

    def split(self, members: Sequence[Member], error: Exception) -> None:
        """Restore the members of a unit that failed as a whole, so that they train this epoch again in other units."""
        raise error

    @property
    def validates(self) -> bool:
        """Whether this turn's epoch ends with a validation."""
        return (self.roster.epoch + 1) % self._validate_every == 0

    # --- the course of the job ---

    def open_turn(self) -> bool:
        """Go on to the next epoch that a member trains, and make the loaders give it. False at the job's end."""
        self.look_up()
        self.turn = []
        while not self.turn and self.roster.open_turn():
            present = {member.number for member in self.active}
            for number in list(self.roster.turn):
                if number not in present:
                    self._admit(number)
            self.clear()
            new = [member for member in self.active if member.number not in present]
            self.save([member for member in new if member.finished_epochs == 0 and not member.begun])
            self.turn = [member for member in self.active if member.number in self.roster.turn]
            if not self.turn:
                self.roster.close_turn()
        for loader in (self.data.train, self.data.validation):
            if isinstance(loader, SeededLoader | FoldedLoader):
                loader.set_epoch(self.roster.epoch)
        if not self.turn:
            activity.end_epochs()
        return bool(self.turn)

    def start_epoch(self) -> None:
        """Call the hooks before the first batch."""
        activity.begin_epoch()
        self._default_dtype = torch.get_default_dtype()
        self._batches = 0
        self._each(Member.start_epoch)
        for pool in self._frozen:
            pool.part()  # a hook may have unfrozen something
        for unit in self._turning():
            self._guard_unit(unit, unit.start_epoch)

    def step(self, batches: Sequence[Any]) -> None:
        """Make one optimizer step of every member on each batch, but for those on which it was made before."""
        self.look_up()
        copies = self.devices.copies(batches)
        housed = {member for unit in self._units for member in unit.members}
        if homeless := [member for member in self.turn if member not in housed]:
            self._assign(homeless, copies)
        first, places = self._batches, range(len(batches))
        self._batches += len(batches)
        units = self._turning()
        steps = [(unit, place) for place in places for unit in units]
        if all(unit.can_wait for unit in units):  # each takes all in a row then, with what it reads in near memory
            steps = [(unit, place) for unit in units for place in places]
        for unit, place in steps:
            if unit in self._units and (batch := _batch_of(unit, copies, place)) is not None:
                number = first + place
                again = number < unit.members[0].begun
                self._guard_unit(unit, unit.pass_over if again else unit.train_batch, batch, number)
                activity.progress()
        for unit in units:
            if unit in self._units:
                self._guard_unit(unit, unit.end_run)

    def start_validation(self) -> None:
        """Call the hooks before the first validation batch."""
        self._each(Member.start_validation)

    def validate(self, batch: Any, index: int) -> None:
        """Score every member on a batch."""
        self.look_up(validating=True)
        self._validated += 1
        copies = self.devices.copies([batch])
        for unit in self._turning():
            if (own := _batch_of(unit, copies)) is not None:
                self._guard_unit(unit, unit.validate_batch, own, index)
                activity.progress()

    def end_validation(self) -> None:
        """Call the hooks after the last validation batch."""
        self._each(Member.end_validation)

    def close_turn(self) -> None:
        """End the epoch: close it for every member of the turn, prune, save, and let finished members leave."""
        for unit in self._turning():
            self._guard_unit(unit, unit.close_epoch)
        self._each(self._end_epoch)
        self.clear()
        may_stop = [member for member in self.turn if not member.finished] if self.validates else []
        stopped = self.roster.close_turn([member.number for member in may_stop])
        for member in may_stop:
            if member.number in stopped:
                member.prune()
            elif self.must_stop(member):
                member.stop()
        self._each(self._end_training)
        self.save_turn(list(self.turn))
        for member in [member for member in self.active if member.finished]:
            self.remove(member)
        self._batches = self._validated = 0
        activity.end_epoch()

    def fail(self, member: Member, error: BaseException) -> None:
        """Evict a member that has failed.

        Raises:
            InfrastructureError: nobody's fault.
        """
        self.refuse_to_blame(error)
        if member in self.active:  # else it replaces one that left before
            self.remove(member)
            self.evicted(member.number, member.finished_epochs + 1, error_text(error))

    def refuse_to_blame(self, error: BaseException) -> None:
        """Raise InfrastructureError if none of the members can be blamed: they share what is lacking, or was ended."""
        refuse_ended_worker(error)
        if lacks_files(error) and self.roster.shared:
            raise InfrastructureError(
                "the job's process can open no more files, and its trials share them; raise 'ulimit -n' where it runs: "
                f"{error_message(error)}"
            ) from error

    def remove(self, member: Member) -> None:
        """Take a member out of the job."""
        for unit in self._units:
            unit.remove(member)
        self._drop([unit for unit in self._units if not unit.members])
        self.active = [other for other in self.active if other is not member]
        self.turn = [other for other in self.turn if other is not member]
        self.roster.leave(member.number)
        del self.modules[str(member.number)]

    def replace(self, member: Member, other: Member) -> None:
        """Put another member in the place of one that is in no unit; `start` lets it train."""
        self.active, self.turn = (
            [other if each is member else each for each in some] for some in (self.active, self.turn)
        )
        self.modules[str(other.number)] = other.module

    def start(self, member: Member) -> None:
        """Make a member ready to train on from its state."""
        with self.devices.entered(member.device_index):
            self._prepare(member)
            self.restore(member)
            member.start_fit()
            self._frozen[member.device_index].share(member.module)

    def _drop(self, units: Sequence[Unit]) -> None:
        for unit in units:
            self._units.remove(unit)
            unit.close()

    def _admit(self, number: int) -> None:
        with activity.running(self.roster.trial_of(number)):
            member = self.build(number)
        if member is None:
            self.roster.leave(number)
            return
        self.active.append(member)
        self.modules[str(number)] = member.module
        with guarding(member, self.fail):
            self.start(member)

    def _prepare(self, member: Member) -> None:
        data = self.data.of(member.number)
        member.attach(self.trainer, "fit", sized_len(data.train) or math.inf, data.module)
        member.module.to(self.devices.all[member.device_index])  # after setup, as in Lightning: it may add modules
        self.trainer.precision_plugin.convert_module(member.module)
        member.start()

    def _assign(self, homeless: Sequence[Member], copies: Copies) -> None:
        """Assign members without a unit, regrouping each original cohort.

        Which kernels run, and so the last bits, may depend on the members of a unit, also on those that have left.
        """
        broken = [member for member in homeless if member.number in self._broken]
        if broken:
            release_memory()  # which larger units have left in pieces of other sizes
            self._units += self._formed(broken, copies)
        for cohort in dict.fromkeys(self.roster.company(m.number) for m in homeless if m not in broken):
            here = {member.number: member for member in self.turn if member.number in cohort}
            here = {number: member for number, member in here.items() if number not in self._broken}
            self._drop([unit for unit in self._units if any(m.number in here for m in unit.members)])
            everyone = [here.get(number) or self._stand_in(number) for number in cohort]
            units = self._formed([member for member in everyone if member is not None], copies)
            for unit in units:
                for stand_in in [member for member in unit.members if member.number not in here]:
                    unit.remove(stand_in)
            self._units += [unit for unit in units if unit.members]

    def _formed(self, members: Sequence[Member], copies: Copies) -> list[Unit]:
        """Return units of members, those of each device by themselves."""
        units: list[Unit] = []
        for index, here in by_device(members):
            with self.devices.entered(index):
                units += self.form(here, copies.on(index)[0])
        return units

    def _stand_in(self, number: int) -> Member | None:
        """A member that has left, as it was when it came."""
        try:
            outside = outside_steps(self.devices.all[0].type, self._default_dtype)
            with activity.running(self.roster.trial_of(number)), outside:
                member = self.rebuild(number)
                if member is not None:
                    with self.devices.entered(member.device_index):
                        self._prepare(member)
                        member.start_fit()
                        self._frozen[member.device_index].share(member.module)
        except (Exception, SystemExit) as error:
            refuse_fault(error)
            logger.warning("trial %s, which has left, can't be built again", number, exc_info=True)
            return None
        return member

    def _end_epoch(self, member: Member) -> None:
        member.end_epoch()
        self.roster.take(member.number, member.history[-1], member.parameters, judged=self.validates)

    def _end_training(self, member: Member) -> None:
        if member.finished:
            member.end_training()

    def _turning(self) -> list[Unit]:
        """The units with members in the current turn; all members of a unit are at the same epoch."""
        return [unit for unit in self._units if any(member in self.turn for member in unit.members)]

    def _each(self, action: Callable[[Member], None]) -> None:
        for member in list(self.turn):
            with guarding(member, self._fail_between), self.devices.entered(member.device_index):
                action(member)

    def _fail_between(self, member: Member, error: BaseException) -> None:
        """As `fail`, outside of steps; where the weights of its unit may be the cause, the member goes on by itself."""
        unit = next((unit for unit in self._units if member in unit.members), None)
        if unit is None or unit.is_single or not isinstance(error, Exception) or not views_as_rows(error):
            self.fail(member, error)
            return
        unit.remove(member)
        self._drop([unit for unit in self._units if not unit.members])
        self.turn = [other for other in self.turn if other is not member]
        self._broken.add(member.number)
        self.split([member], error)

    def _guard_unit(self, unit: Unit, action: Callable[..., None], *args: Any) -> None:
        """Call a unit; if it fails as a whole, break it up: its members leave this turn and come again."""
        index = unit.members[0].device_index if unit.members else 0
        try:
            with self.devices.entered(index):
                action(*args)
        except InfrastructureError:
            raise
        except Exception as error:
            refuse_fault(error)
            unit.end_run()
            members = list(unit.members)
            if not members:  # they had failed in earlier steps
                return
            if unit.is_single and not isinstance(error, DiffersError):
                self.fail(members[0], error)
                return
            self._drop([unit])
            self.turn = [member for member in self.turn if member not in members]
            self._broken.update(member.number for member in members)
            with outside_steps(self.devices.all[index].type, self._default_dtype):
                self.split(members, error)


def by_device(members: Sequence[Member]) -> Iterator[tuple[int, list[Member]]]:
    """Yield the index of each device that trains some members, and these."""
    for index in dict.fromkeys(member.device_index for member in members):
        yield index, [member for member in members if member.device_index == index]


def _batch_of(unit: Unit, copies: Copies, place: int = 0) -> Any:
    """Return the batch at a place of a run as a unit takes it; None if its fold has no more."""
    member = unit.members[0]
    return own_batch(copies.on(member.device_index)[place], member.number)
