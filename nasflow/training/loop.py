"""All members of a job in one Lightning Trainer: one pass over the data feeds every member."""

import logging
import math
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning import LightningModule, Trainer
from torch import nn

from nasflow.errors import TrialError
from nasflow.evaluator.data_source import Data
from nasflow.job import blame
from nasflow.merge.values.frozen_pool import FrozenPool
from nasflow.training.batch_runs import Run
from nasflow.training.member.member import Member
from nasflow.training.member.modes import EvaluationModes
from nasflow.training.schedule.turns import Roster
from nasflow.training.seeded_loader import SeededLoader
from nasflow.training.unit.base import DiffersError, SoloUnit, Unit, guarding

logger = logging.getLogger(__name__)

_TRACE_LINES = 12


Failed = Callable[[Member, BaseException], None]
Form = Callable[[Sequence[Member], Any, Failed], list[Unit]]


def alone(members: Sequence[Member], batch: Any, failed: Failed) -> list[Unit]:
    """Every member a unit by itself."""
    return [SoloUnit([member], failed) for member in members]


def _save_nobody(members: Sequence[Member], failed: Failed) -> None:
    """No checkpoints."""


def _nobody(number: int) -> None:
    """No stand-in."""


class MergedModule(LightningModule):
    """Drives members step by step; a member that fails is evicted and the others go on untouched.

    A member trains in an epoch exactly if that is the next one it has not finished, so members that stand at different
    epochs can share a job.

    Args:
        roster: says who has a place, and whose turn it is.
        data: what the loaders came from; a LightningDataModule's transfer hooks are honoured.
        build: makes a member whose turn comes for the first time; None if it can't be built.
        on_start: called with each member once its optimizer is made, before its first epoch.
        save: called with the members that come in to train from the start, and what to call with one that can't be
            saved and why.
        end_epoch: called so with those that have ended an epoch.
        on_evict: called with a member that failed and the text of its error.
        form: makes units of members for batches like the given one, with what to call when a member fails.
        rebuild: makes a member anew that has left before the job was interrupted; None if it never came that far.
        on_broken: called with the members of a unit that failed as a whole and its error; they train on from what it
            left them.
    """

    def __init__(
        self,
        roster: Roster,
        data: Data,
        *,
        build: Callable[[int], Member | None],
        on_start: Callable[[Member], None],
        on_evict: Callable[[Member, str], None],
        save: Callable[[Sequence[Member], Failed], None] | None = None,
        end_epoch: Callable[[Sequence[Member], Failed], None] | None = None,
        form: Form | None = None,
        rebuild: Callable[[int], Member | None] | None = None,
        on_broken: Callable[[list[Member], Exception], None] | None = None,
    ):
        super().__init__()
        self.automatic_optimization = False
        self.active: list[Member] = []
        self.modules_of_members = nn.ModuleDict()  # by trial, for Lightning to move
        self._modes = EvaluationModes()
        self._roster = roster
        self._data = data
        self._build, self._on_start, self._on_evict = build, on_start, on_evict
        self._frozen = FrozenPool()
        self._save, self._end_epoch_of = save or _save_nobody, end_epoch or _save_nobody
        self._form, self._on_broken = form or alone, on_broken
        self._rebuild = rebuild or _nobody
        self._broken: set[int] = set()  # trials of units that failed as a whole
        self._turn: list[Member] = []
        self._units: list[Unit] = []
        self._batches = 0  # of this epoch, that were trained on

    @classmethod
    def to_score(cls, member: Member, data: Data) -> "MergedModule":
        """One member to be validated only; what it raises is raised."""

        def raise_it(member: Member, error: str) -> None:
            raise TrialError(error)

        def nothing(_: object) -> None:
            pass

        module = cls(Roster([]), data, build=nothing, on_start=nothing, on_evict=raise_it)
        module._add(member)
        module._turn = [member]
        module._units = alone([member], None, module._failed)
        return module

    def configure_optimizers(self) -> None:
        """Members keep their own optimizers."""

    def setup(self, stage: str) -> None:
        """Show the data module, whose hooks may ask it, the Trainer."""
        if self._data.module is not None:
            self._data.module.trainer = self.trainer

    def on_fit_start(self) -> None:
        """Let the first members in."""
        self._open_turn()

    def on_train_epoch_start(self) -> None:
        """As the members' own hook."""
        self._batches = 0
        self._each(Member.start_epoch)
        self._frozen.part()  # a hook may have unfrozen something
        for unit in self._turning():
            self._guard_unit(unit, unit.start_epoch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Leave out the rest of an epoch whose every member has failed."""
        return None if self._turn else -1

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """One step of every member on the same batch, or as many as there are batches in a run."""
        run = batch if isinstance(batch, Run) else [batch]
        at_home = {member for unit in self._units for member in unit.members}
        if homeless := [member for member in self._turn if member not in at_home]:
            self._house(homeless, run[0])
        batches = list(enumerate(run, self._batches))
        self._batches += len(run)
        units = self._turning()
        steps = [(unit, *numbered) for numbered in batches for unit in units]
        if all(unit.can_wait for unit in units):  # each takes all in a row then, with what it reads in near memory
            steps = [(unit, *numbered) for unit in units for numbered in batches]
        for unit, number, one in steps:
            if unit in self._units:
                self._guard_unit(unit, unit.train_batch, one, number)

    def on_validation_model_zero_grad(self) -> None:
        """Gradients stay till the next step, which sets them anew: to look for them in all members takes long."""

    def on_validation_model_eval(self) -> None:
        """As Lightning's own, which takes ten times as long."""
        self._modes.enter(member.module for member in self.active)

    def on_validation_model_train(self) -> None:
        """As Lightning's own."""
        self._modes.leave()

    def on_validation_epoch_start(self) -> None:
        """As the members' own hook."""
        self._each(Member.start_validation)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score every member on the same batch."""
        for unit in self._turning():
            self._guard_unit(unit, unit.validate_batch, batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """As the members' own hook."""
        self._each(Member.end_validation)

    def on_train_epoch_end(self) -> None:
        """Close the epoch of those whose turn it was, and let others in where one has left."""
        self._close_turn()  # apart, so that nothing here holds on to one who has left while another is built
        self._open_turn()

    def _close_turn(self) -> None:
        for unit in self._turning():
            self._guard_unit(unit, unit.close_epoch)
        self._each(self._end_epoch)
        stopped = self._roster.close_turn([member.number for member in self._turn if not member.finished])
        for member in self._turn:
            if member.number in stopped:
                member.prune()
        self._end_epoch_of(list(self._turn), self._failed)
        for member in [member for member in self.active if member.finished]:
            self._remove(member)

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The data module's own hook, if there is one, within the loader's random stream."""
        module, own = self._data.module, super().on_before_batch_transfer
        with self._transfer_stream():
            return (module.on_before_batch_transfer if module else own)(batch, dataloader_idx)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """The data module's own hook, if there is one, within the loader's random stream."""
        module, own = self._data.module, super().transfer_batch_to_device
        with self._transfer_stream():
            return (module.transfer_batch_to_device if module else own)(batch, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """The data module's own hook, if there is one, within the loader's random stream."""
        module, own = self._data.module, super().on_after_batch_transfer
        with self._transfer_stream():
            return (module.on_after_batch_transfer if module else own)(batch, dataloader_idx)

    def _transfer_stream(self) -> AbstractContextManager[Any]:
        loader = self._data.train if self.trainer.training else self._data.validation
        return loader.stream if self._data.module and isinstance(loader, SeededLoader) else nullcontext()

    def _open_turn(self) -> None:
        """Go on to the next epoch that someone trains, and have the loaders give it; stop if there is none."""
        self._turn = []
        while not self._turn and self._roster.open_turn():
            present = {member.number for member in self.active}
            for number in list(self._roster.turn):
                if number not in present:
                    self._admit(number)
            new = [member for member in self.active if member.number not in present]
            self._save([member for member in new if member.finished_epochs == 0], self._failed)
            self._turn = [member for member in self.active if member.number in self._roster.turn]
            if not self._turn:
                self._roster.close_turn()
        self.trainer.should_stop = not self._turn
        for loader in (self._data.train, self._data.validation):
            if isinstance(loader, SeededLoader):
                loader.epoch = self._roster.epoch

    def _house(self, homeless: Sequence[Member], batch: Any) -> None:
        """Give those a unit who have none: with all of their company, as when it came.

        Which kernels run, and so the last bits, may depend on who is in a unit; also on those who have left it since.
        """
        broken = [member for member in homeless if member.number in self._broken]
        if broken:
            self._units += self._form(broken, batch, self._failed)
        for company in dict.fromkeys(self._roster.company(m.number) for m in homeless if m not in broken):
            here = {member.number: member for member in self._turn if member.number in company}
            here = {number: member for number, member in here.items() if number not in self._broken}
            self._units = [unit for unit in self._units if not any(m.number in here for m in unit.members)]
            everyone = [here.get(number) or self._stand_in(number) for number in company]
            units = self._form([member for member in everyone if member is not None], batch, self._failed)
            for unit in units:
                for stand_in in [member for member in unit.members if member.number not in here]:
                    unit.remove(stand_in)
            self._units += [unit for unit in units if unit.members]

    def _stand_in(self, number: int) -> Member | None:
        """One who left, as it was when it came."""
        try:
            with blame.running(number):
                member = self._rebuild(number)
                if member is not None:
                    self._prepare(member)
                    self._frozen.share(member.module)
        except (Exception, SystemExit):
            logger.warning("trial %s, which has left, can't be built again", number, exc_info=True)
            return None
        return member

    def _admit(self, number: int) -> None:
        with blame.running(number):
            member = self._build(number)
        if member is None:
            self._roster.leave(number)
            return
        self._add(member)
        with guarding(member, self._failed):
            self._start(member)

    def _add(self, member: Member) -> None:
        self.active.append(member)
        self.modules_of_members[str(member.number)] = member.module

    def _start(self, member: Member) -> None:
        self._prepare(member)
        self._on_start(member)
        self._frozen.share(member.module)

    def _prepare(self, member: Member) -> None:
        member.module.to(self.device)
        self.trainer.precision_plugin.convert_module(member.module)
        member.attach(self.trainer, "fit", sized_len(self._data.train) or math.inf)
        member.start()

    def _end_epoch(self, member: Member) -> None:
        member.end_epoch()
        self._roster.take(member.number, member.history[-1], member.parameters)

    def _each(self, action: Callable[..., None], *args: Any) -> None:
        for member in list(self._turn):
            with guarding(member, self._failed):
                action(member, *args)

    def _failed(self, member: Member, error: BaseException) -> None:
        if member in self.active:  # else it stands in for one who failed before
            self._remove(member)
            self._on_evict(member, error_text(error))

    def _turning(self) -> list[Unit]:
        """The units whose turn it is: all members of a unit stand at the same epoch."""
        return [unit for unit in self._units if any(member in self._turn for member in unit.members)]

    def _guard_unit(self, unit: Unit, action: Callable[..., None], *args: Any) -> None:
        """A unit that fails as a whole breaks up; its members leave this turn and come again."""
        try:
            action(*args)
        except Exception as error:
            if self._on_broken is None:
                raise
            members = list(unit.members)
            if unit.is_single and not isinstance(error, DiffersError):
                self._failed(members[0], error)
                return
            self._units.remove(unit)
            self._turn = [member for member in self._turn if member not in members]
            self._broken.update(member.number for member in members)
            self._on_broken(members, error)

    def _remove(self, member: Member) -> None:
        for unit in self._units:
            unit.remove(member)
        self._units = [unit for unit in self._units if unit.members]
        self.active = [other for other in self.active if other is not member]
        self._turn = [other for other in self._turn if other is not member]
        self._roster.leave(member.number)
        del self.modules_of_members[str(member.number)]


def error_text(error: BaseException) -> str:
    """An error as its record keeps it: what it was, then the last lines of its traceback."""
    trace = traceback.format_exception(error)
    tail = "".join(trace).strip().splitlines()[-_TRACE_LINES:]
    return "\n".join([f"{type(error).__name__}: {error}", *tail])


def make_trainer(precision: Any) -> Trainer:
    """A Trainer that only drives: no logger, no progress bar, no checkpoints of its own, one device."""
    logging.getLogger("pytorch_lightning").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*`training_step` returned `None`.*")
    warnings.filterwarnings("ignore", message=".*returned `None`, this fit will run with no optimizer.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")  # jobs start their own way
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")  # Lightning 2.6 on torch 2.13
    return Trainer(
        accelerator="gpu" if torch.cuda.is_available() else "cpu",
        devices=1,
        precision=precision,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=Path.cwd(),
        plugins=[LightningEnvironment()],  # in a Slurm allocation it would take itself for one of several ranks
    )
