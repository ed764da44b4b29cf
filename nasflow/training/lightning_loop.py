"""A job's members in one Lightning Trainer: one pass over the data feeds every member."""

import logging
import sys
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.environments.lightning import LightningEnvironment
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.plugins import DoublePrecision, MixedPrecision
from pytorch_lightning.strategies import Strategy

from nasflow.clean_text import error_message
from nasflow.errors import ConfigError
from nasflow.evaluator.loading.data_source import Data
from nasflow.evaluator.loading.data_trainer import DataTrainer
from nasflow.evaluator.loading.folds import ByFold
from nasflow.training.batches.batch_runs import Run, training_batches
from nasflow.training.batches.seeded_loader import SeededLoader
from nasflow.training.batches.transfer import run_on
from nasflow.training.driver import Driver
from nasflow.training.member.member import Member
from nasflow.training.member.trainer.modes import EvaluationModes
from nasflow.training.unit.base import guarding


class FedModule(LightningModule):
    """A LightningModule that passes its batches through the transfer hooks of the data module, if there is one.

    The hooks run within the loader's random stream.

    Args:
        data: what the Trainer's loaders came from.
        epoch: returns how often the data was passed over before.
    """

    def __init__(self, data: Data, epoch: Callable[[], int] = lambda: 0):
        super().__init__()
        self._data = data
        self._epoch = epoch

    def setup(self, stage: str) -> None:
        """Give the data module the Trainer, because its hooks may use it."""
        for data in self._data.folds or (self._data,):
            if data.module is not None:
                data.module.trainer = DataTrainer(self.trainer, self._epoch)  # type: ignore[assignment]

    def on_before_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Call the data module's own hook, if there is one."""
        return self._call("on_before_batch_transfer", batch, super().on_before_batch_transfer, dataloader_idx)

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:
        """Call the data module's own hook, if there is one; else a run goes to a GPU at once."""
        if isinstance(batch, Run) and device.type == "cuda" and (run := run_on(device, batch)) is not None:
            return run  # a data module's batches come one by one
        return self._call("transfer_batch_to_device", batch, super().transfer_batch_to_device, device, dataloader_idx)

    def on_after_batch_transfer(self, batch: Any, dataloader_idx: int) -> Any:
        """Call the data module's own hook, if there is one."""
        return self._call("on_after_batch_transfer", batch, super().on_after_batch_transfer, dataloader_idx)

    def _call(self, name: str, batch: Any, default: Callable[..., Any], *args: Any) -> Any:
        if not isinstance(batch, ByFold):
            return self._call_of(self._data, name, batch, default, *args)
        folds = zip(self._data.folds, batch, strict=True)
        return ByFold(None if own is None else self._call_of(data, name, own, default, *args) for data, own in folds)

    def _call_of(self, data: Data, name: str, batch: Any, default: Callable[..., Any], *args: Any) -> Any:
        if data.module is None:
            return default(batch, *args)
        loader = data.train if self.trainer.training else data.validation
        with loader.transfers if isinstance(loader, SeededLoader) else nullcontext():
            return getattr(data.module, name)(batch, *args)


class MergedModule(FedModule):
    """Connects a driver to its Trainer's hooks."""

    def __init__(self, driver: Driver):
        super().__init__(driver.data, lambda: driver.roster.epoch)
        self.automatic_optimization = False
        self.modules_of_members = driver.modules  # for Lightning to move
        self._driver = driver
        self._modes: dict[Member, EvaluationModes] = {}

    def configure_optimizers(self) -> None:
        """Members keep their own optimizers."""

    def on_fit_start(self) -> None:
        """Let the first members in."""
        self._open_turn()

    def on_train_epoch_start(self) -> None:
        """Call the members' own hooks."""
        self._driver.start_epoch()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> int | None:
        """Skip the rest of an epoch in which every member has failed."""
        return None if self._driver.turn else -1

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Make one step of every member on the same batch, or one for each batch in a run."""
        self._driver.step(batch if isinstance(batch, Run) else [batch])

    def on_validation_model_zero_grad(self) -> None:
        """Keep the gradients, which the next step replaces: clearing those of all members takes long."""

    def on_validation_model_eval(self) -> None:
        """Put the models into evaluation mode; Lightning's own hook takes ten times as long."""
        for member in list(self._driver.active):
            self._modes[member] = EvaluationModes()
            with guarding(member, self._driver.fail):  # a module may have its own `train`
                self._modes[member].enter([member.module])

    def on_validation_model_train(self) -> None:
        """Restore the modes that the models had before validation."""
        for member, modes in self._modes.items():
            with guarding(member, self._driver.fail):
                modes.leave()
        self._modes.clear()

    def on_validation_epoch_start(self) -> None:
        """Call the members' own hooks."""
        self._driver.start_validation()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score every member on the same batch."""
        self._driver.validate(batch, batch_idx)

    def on_validation_epoch_end(self) -> None:
        """Call the members' own hooks."""
        self._driver.end_validation()

    def on_train_epoch_end(self) -> None:
        """Close the epoch of the members that trained, and let others enter where one has left."""
        self._driver.close_turn()  # apart, so that nothing here keeps a member that has left while another is built
        self._open_turn()

    def _open_turn(self) -> None:
        self.trainer.should_stop = not self._driver.open_turn()
        self.trainer.check_val_every_n_epoch = 1 if self._driver.validates else sys.maxsize


def run(driver: Driver, validate: bool = True) -> None:
    """Train a driver's members to the end of the job, with validation after each epoch unless it is left out."""
    validation = driver.data.validation if validate else None
    driver.trainer.fit(MergedModule(driver), training_batches(driver.data), validation)


def make_trainer(precision: Any, strategy: Strategy | None = None, processes: int = 1) -> Trainer:
    """Return a Trainer that only drives: no logger, no progress bar, no checkpoints, one device.

    Args:
        precision: as Lightning's.
        strategy: Lightning's, for one of several processes; none: there is only this one.
        processes: how many there are, each with a device of its own.

    Raises:
        ConfigError: its device can't compute in this precision.
    """
    quiet()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    plugins: list[Any] = [LightningEnvironment()]  # in a Slurm allocation it would take itself for one of several ranks
    if precision == "16-mixed":
        _refuse_without_half(device)
        plugins.append(MixedPrecision(precision, device))  # on a CPU, Lightning would use bf16-mixed
    if precision == "64-true":
        plugins.append(DoublePrecision())  # by its name, Lightning refuses it beside some strategies
    return Trainer(
        accelerator="gpu" if device == "cuda" else "cpu",
        devices=1,
        num_nodes=processes,
        strategy=strategy or "auto",
        inference_mode=strategy is None,  # sharded weights can't be gathered in it
        precision=None if precision in ("16-mixed", "64-true") else precision,
        max_epochs=-1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
        default_root_dir=Path.cwd(),
        plugins=plugins,
    )


def quiet() -> None:
    """Turn off what Lightning says about loops that it does not drive."""
    lightning = logging.getLogger("pytorch_lightning")
    if lightning.level != logging.WARNING:  # to set it takes a while
        lightning.setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*`training_step` returned `None`.*")
    warnings.filterwarnings("ignore", message=".*returned `None`, this fit will run with no optimizer.*")
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*have no `val_dataloader`.*")  # data may have no validation
    warnings.filterwarnings("ignore", message=".*`srun` command is available.*")  # jobs start their own way
    warnings.filterwarnings("ignore", message=".*isinstance.treespec, LeafSpec.*")  # Lightning 2.6 on torch 2.13


def _refuse_without_half(device: str) -> None:
    """Raise ConfigError if a device can't compute in half precision."""
    try:
        with torch.autocast(device, torch.float16):
            x = torch.ones(8, 8, device=device, requires_grad=True)
            (x @ x).sum().backward()
    except RuntimeError as error:
        raise ConfigError(
            f"evaluator.precision: this {'GPU' if device == 'cuda' else 'CPU'} can't compute in half precision; use "
            f"bf16-mixed or 32-true instead of 16-mixed ({error_message(error)})"
        ) from error
