"""What a member's module and callbacks see as their Trainer."""

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch
from lightning_fabric.utilities.device_dtype_mixin import _DeviceDtypeModuleMixin
from pytorch_lightning.core.optimizer import LightningOptimizer
from pytorch_lightning.utilities import GradClipAlgorithmType
from pytorch_lightning.utilities.types import LRSchedulerConfig
from torch.fx import _symbolic_trace

from nasflow.config.evaluator.training import TrainingConfig
from nasflow.errors import TrialError
from nasflow.training.member.average import Average
from nasflow.training.member.optimization import Fitting, goes_by_metric
from nasflow.training.member.rng import RngStream
from nasflow.training.member.trainer.hooks import GRADIENT_HOOKS, Hooks
from nasflow.training.member.trainer.pace import Pace

if TYPE_CHECKING:
    from pytorch_lightning import LightningDataModule, LightningModule


class Trained(Protocol):
    """What the view shows of a member."""

    module: "LightningModule"
    hooks: Hooks
    config: TrainingConfig
    epochs: int
    finished_epochs: int
    batch_index: int
    is_manual: bool
    pace: Pace
    rng: RngStream
    average: Average

    @property
    def steps(self) -> int:
        """Optimizer steps made."""

    @property
    def fitting(self) -> Fitting:
        """Optimizers and schedules."""

    def logged_so_far(self) -> dict[str, float]:
        """Return what it logged in its last epoch, and in this one so far."""


class TrainerView:
    """The `self.trainer` of a member's module: the job's Trainer, but with the member's own progress.

    The job's counters depend on which members are in it; a member's must not.

    Args:
        batches: training batches in an epoch; infinite if the loader does not know its length.
        datamodule: what the data came from, if that is one.

    Attributes:
        should_stop: a callback sets it to end the member's training after the epoch.
    """

    def __init__(self, trainer: Any, member: Trained, batches: float, datamodule: "LightningDataModule | None" = None):
        self._trainer = trainer
        self._member = member
        self.num_training_batches = batches
        self.datamodule = datamodule
        self.should_stop = False
        self.strategy = StrategyView(trainer.strategy, member)

    def of(self, member: Trained) -> "TrainerView":
        """Return the same for another member."""
        return TrainerView(self._trainer, member, self.num_training_batches, self.datamodule)

    @property
    def lightning_module(self) -> Any:
        """The member's module."""
        return self._member.module

    @property
    def model(self) -> Any:
        """The member's module; the job's Trainer has those of all members in one."""
        return self._member.module

    @property
    def check_val_every_n_epoch(self) -> int:
        """Epochs from one validation of the member to the next, from its config."""
        return self._member.config.validate_every

    @property
    def train_dataloader(self) -> Any:
        """Refuse the job's loader, which gives runs of batches. Raises TrialError."""
        raise TrialError(
            "trainer.train_dataloader: all trials of a job share one; use trainer.num_training_batches, or "
            "trainer.datamodule"
        )

    @property
    def val_dataloaders(self) -> Any:
        """The loader of the validation data as it was given. Raises TrialError if each fold has its own."""
        loader = self._trainer.val_dataloaders  # seeded for the job
        if loader is None:  # before the first validation
            return None
        if not hasattr(loader, "loader"):
            raise TrialError(
                "trainer.val_dataloaders: each fold has its own; take what you need from the batches of validation_step"
            )
        return loader.loader

    @property
    def callbacks(self) -> list[Any]:
        """The member's callbacks."""
        return self._member.hooks.callbacks

    @property
    def current_epoch(self) -> int:
        """Epochs the member has finished."""
        return self._member.finished_epochs

    @property
    def global_step(self) -> int:
        """Optimizer steps the member has made."""
        return self._member.steps

    @property
    def max_epochs(self) -> int:
        """Epochs the member is to train."""
        return self._member.epochs

    @property
    def estimated_stepping_batches(self) -> float:
        """Optimizer steps in the member's whole training; infinite if the loader does not know its length."""
        batches, epochs = self.num_training_batches, self._member.epochs
        return batches if batches == math.inf else math.ceil(batches / self.accumulate_grad_batches) * epochs

    @property
    def accumulate_grad_batches(self) -> int:
        """Batches of an optimizer step, from the member's config."""
        return self._member.pace.accumulated

    @property
    def is_last_batch(self) -> bool:
        """Whether the step is the epoch's last, as far as the loader knows its length."""
        return self._member.batch_index + 1 >= self.num_training_batches

    @property
    def callback_metrics(self) -> dict[str, torch.Tensor]:
        """What the member logged in its last epoch, and in this one so far."""
        return {name: torch.tensor(value) for name, value in self._member.logged_so_far().items()}

    @property
    def logged_metrics(self) -> dict[str, torch.Tensor]:
        """The same: what is logged of steps counts by its mean over the epoch."""
        return self.callback_metrics

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The member's optimizers; none before they are made."""
        return self.strategy.optimizers

    @optimizers.setter
    def optimizers(self, given: Any) -> None:
        _refuse_others("trainer.optimizers")

    @property
    def lr_scheduler_configs(self) -> list[LRSchedulerConfig]:
        """The member's schedules; none before they are made."""
        return self.strategy.lr_scheduler_configs

    @property
    def gradient_clip_val(self) -> float | None:
        """The member's, from its config."""
        value: Any = self._member.config.gradient_clip_val
        return None if value is None or value <= 0 else float(value)

    @property
    def gradient_clip_algorithm(self) -> GradClipAlgorithmType | None:
        """The member's, from its config; None without clipping."""
        algorithm = self._member.config.gradient_clip_algorithm
        return None if self.gradient_clip_val is None else GradClipAlgorithmType(algorithm)

    def save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        """Refuse to save the whole job. Raises TrialError."""
        raise TrialError("trainer.save_checkpoint: nasflow saves every trial by itself; leave it out")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


def give_trainer(module: "LightningModule", view: Any, device: torch.device | None = None) -> None:
    """Give a module its trainer, and as Lightning does also the LightningModules within it; None takes it away.

    Args:
        device: the GPU to which it will be moved, which is its `device` from now on.
    """
    parts: Any = view and _PartsView(view)
    module.trainer = parts
    module._trainer = view
    if device is not None:
        for part in module.modules():
            if isinstance(part, _DeviceDtypeModuleMixin):
                part._device = device


class _PartsView(tuple[()]):
    """The `self.trainer` of a LightningModule within a member's module: what the member's own is.

    Layers with equal attributes are merged, and what is read while they are traced stays as it was then. Empty tuples
    are equal, and this one refuses to be read there, so that a forward which reads it runs as it is, for each member.
    """

    def __new__(cls, view: TrainerView) -> "_PartsView":
        made = super().__new__(cls)
        object.__setattr__(made, "_view", view)
        return made

    def __bool__(self) -> bool:
        return True

    def __getattr__(self, name: str) -> Any:
        if _symbolic_trace._is_fx_tracing_flag:
            raise TypeError(f"self.trainer.{name} can't be traced")
        return getattr(vars(self)["_view"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(vars(self)["_view"], name, value)


class StrategyView:
    """The `self.trainer.strategy` of a member: it steps the member's own optimizers, with the member's hooks."""

    def __init__(self, strategy: Any, member: Trained):
        self._strategy = strategy
        self._member = member

    @property
    def lightning_module(self) -> Any:
        """The member's module."""
        return self._member.module

    @property
    def model(self) -> Any:
        """The same."""
        return self._member.module

    @property
    def optimizers(self) -> list[torch.optim.Optimizer]:
        """The member's optimizers; none before they are made."""
        fitting = self._fitting
        return [] if fitting is None else fitting.optimizers

    @optimizers.setter
    def optimizers(self, given: Any) -> None:
        _refuse_others("trainer.strategy.optimizers")

    @property
    def lr_scheduler_configs(self) -> list[LRSchedulerConfig]:
        """The member's schedules; none before they are made."""
        fitting = self._fitting
        return [] if fitting is None else [_config_of(entry, self._member.is_manual) for entry in fitting.schedules]

    def setup_optimizers(self, trainer: Any) -> None:
        """Refuse to make other optimizers. Raises TrialError."""
        _refuse_others("trainer.strategy.setup_optimizers")

    @property
    def _fitting(self) -> Fitting | None:
        try:
            return self._member.fitting
        except RuntimeError:  # the member was not started
            return None

    @property
    def _lightning_optimizers(self) -> list[LightningOptimizer]:
        """The member's optimizers as its module gets them by `self.optimizers()`."""
        wrapped = []
        for optimizer in self.optimizers:
            lightning_optimizer = LightningOptimizer(optimizer)
            lightning_optimizer._strategy = self  # type: ignore[assignment]
            if self._member.is_manual:
                lightning_optimizer._on_after_step = self._count_step
            wrapped.append(lightning_optimizer)
        return wrapped

    def _count_step(self) -> None:
        """Count a step of `training_step` and hooks in it; Lightning does not count those of other hooks."""
        if self._member.hooks.running in ("", *GRADIENT_HOOKS):
            self._member.fitting.count_step()

    def backward(self, loss: torch.Tensor, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        """Run the backward hooks of a member that optimizes by itself."""
        self._member.hooks.call("on_before_backward", loss)
        self._member.module.backward(loss, *args, **kwargs)
        self._member.hooks.call("on_after_backward")

    def optimizer_step(self, optimizer: torch.optim.Optimizer, closure: Callable[[], Any], **kwargs: Any) -> Any:
        """Step an optimizer; between the closure and the update come the last hooks and the clipping."""
        fitting = self._member.fitting

        def whole() -> Any:
            result = closure()
            self._end_backward(optimizer)
            return result

        if fitting.scale is None:
            return optimizer.step(closure=whole, **kwargs)
        result = closure()
        with fitting.unscaled(optimizer) as overflows:
            self._end_backward(optimizer)
            if not overflows:
                optimizer.step(**kwargs)
        return result

    def _end_backward(self, optimizer: torch.optim.Optimizer) -> None:
        """Call the last hooks before the update, and clip."""
        member, module = self._member, self._member.module
        member.hooks.call("on_before_optimizer_step", optimizer)
        if not member.is_manual:
            trainer: Any = module.trainer
            module.configure_gradient_clipping(optimizer, trainer.gradient_clip_val, trainer.gradient_clip_algorithm)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._strategy, name)


def _config_of(entry: dict[str, Any], is_manual: bool) -> LRSchedulerConfig:
    """Return a schedule as Lightning has it, which does not read all keys where the module steps it."""
    keys = ["name", "interval", "frequency", *([] if is_manual else ["monitor", "strict"])]
    own = {key: entry[key] for key in keys if key in entry}
    return LRSchedulerConfig(entry["scheduler"], reduce_on_plateau=not is_manual and goes_by_metric(entry), **own)


def _refuse_others(what: str) -> None:
    raise TrialError(
        f"{what}: a trial keeps the optimizers of configure_optimizers, or it could not go on from its checkpoints; "
        "add parameters by self.trainer.optimizers[0].add_param_group({'params': ...}) instead"
    )
