"""The LightningModule of a rank's Trainer: it connects the rank's member to the loop."""

import math
import sys
from typing import Any

import torch.distributed as dist
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning.strategies import ModelParallelStrategy

from nasflow.errors import ConfigError, TrialError
from nasflow.evaluator.loading.data_source import Data
from nasflow.job import activity
from nasflow.resumable.job import Job, JobRunner, State
from nasflow.training.lightning_loop import FedModule
from nasflow.training.wide import strategies
from nasflow.training.wide.epochs.parts import EpochCheckpoints, OptimizerPart
from nasflow.training.wide.link import Link
from nasflow.training.wide.member import WideMember
from nasflow.training.wide.shares import ShareLoader
from nasflow.training.wide.together import share_buffers


class WideModule(FedModule):
    """Trains a member with the other ranks, saves each epoch with them, and reports it.

    Args:
        member: of this rank.
        data: gives this rank's shares.
        checkpoints: of the trial.
        link: to the job's process.
    """

    def __init__(self, member: WideMember, data: Data, checkpoints: EpochCheckpoints, link: Link):
        super().__init__(data, lambda: member.finished_epochs)
        self.automatic_optimization = False
        self.module_of_member = member.module  # for Lightning to move and wrap
        self._member, self._link = member, link
        job = Job(epoch=[self._end_epoch], stop=[lambda state: member.finished])
        self._runner, self._state = JobRunner(job, checkpoints), State()
        self._batches = 0
        self._trained: set[str] = set()  # the names of the weights that are, from the start

    @property
    def _is_sharded(self) -> bool:
        return isinstance(self.trainer.strategy, ModelParallelStrategy)

    def setup(self, stage: str) -> None:
        """Let the member's module make what it makes."""
        super().setup(stage)
        module = self._member.module
        if self._is_sharded:
            module._device_mesh = self.device_mesh
        self._member.attach(self.trainer, "fit", sized_len(self._data.train) or math.inf, self._data.module)
        module.to(self.trainer.strategy.root_device)
        self.trainer.precision_plugin.convert_module(module)
        self._trained = self._trains()

    def configure_model(self) -> None:
        """Divide the weights among the ranks, if they are to be."""
        if self._is_sharded:
            mesh: Any = self.device_mesh
            strategies.shard(self._member.module, mesh["data_parallel"])

    def configure_optimizers(self) -> None:
        """The member keeps its own."""

    def on_fit_start(self) -> None:
        """Make the optimizer, and go on from the newest epoch that all ranks have saved."""
        member: Any = self._member
        member.before_backward = lambda loss: strategies.before_backward(self.trainer.strategy, loss)
        member.start()
        member.start_fit()
        self._state |= {"model": member.module, "optimizer": OptimizerPart(member.fitting.optimizer)}
        self._runner.begin(self._state)
        if self._state["epoch"]:
            member.load_rest(self._state["rest"])
        for epoch in range(self._link.reported + 1, member.finished_epochs + 1):
            self._report(epoch)
        self._open_epoch()

    def on_train_epoch_start(self) -> None:
        """Call the member's own hooks."""
        self._batches = 0
        self._member.start_epoch()
        if unfrozen := sorted(self._trains() - self._trained):
            raise TrialError(
                f"evaluator.parallel: {unfrozen[0]} was frozen when the devices were connected, and trains now; leave "
                "parallel out, or let it train from the start"
            )

    def training_step(self, batch: Any, batch_idx: int) -> None:
        """Make a step on this rank's share of a batch."""
        self._take_share(self._data.train)
        self._batches += 1
        self._member.train_batch(batch, batch_idx)
        activity.progress()

    def on_validation_epoch_start(self) -> None:
        """Call the member's own hooks."""
        share_buffers(self._member.module)
        self._member.start_validation()

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Score this rank's share of a batch."""
        self._take_share(self._data.validation)
        self._member.validate_batch(batch, batch_idx)
        activity.progress()

    def on_validation_epoch_end(self) -> None:
        """Call the member's own hooks."""
        strategies.reshard(self._member.module)
        self._member.end_validation()

    def on_train_epoch_end(self) -> None:
        """Save the epoch with the other ranks, and report it."""
        if not self._batches:
            raise ConfigError(
                "evaluator.data: there is no batch to train on; give loaders that can be iterated again in each epoch"
            )
        self._runner.run_epoch(self._state)
        self._report(self._member.finished_epochs)
        self._open_epoch()

    def _end_epoch(self, state: State) -> None:
        member = self._member
        share_buffers(member.module)
        member.end_epoch()
        if member.finished:
            member.end_training()
        state["rest"] = member.rest()

    def _report(self, epoch: int) -> None:
        member = self._member
        ends = member.finished and epoch == member.finished_epochs
        told = {
            "epoch": epoch,
            "metrics": member.history[epoch - 1],
            "seconds": member.seconds[epoch - 1],
            "finished": ends,
            "stopped_early": ends and member.stopped_early,
            "is_ahead": epoch < member.finished_epochs,
        }
        if not self._link.goes_on_after(told) and not member.finished:
            member.stop()
            member.end_training()

    def _open_epoch(self) -> None:
        member, trainer = self._member, self.trainer
        trainer.should_stop = member.finished
        for loader in (self._data.train, self._data.validation):
            if isinstance(loader, ShareLoader):
                loader.set_epoch(member.finished_epochs)
        validates = (member.finished_epochs + 1) % member.config.validate_every == 0
        trainer.check_val_every_n_epoch = 1 if validates else sys.maxsize
        dist.barrier()  # so that no rank is an epoch ahead of what was answered to another

    def _take_share(self, loader: Any) -> None:
        self._member.share = loader.shares.popleft()

    def _trains(self) -> set[str]:
        return {name for name, parameter in self._member.module.named_parameters() if parameter.requires_grad}
