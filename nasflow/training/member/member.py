"""One trial inside a job: all of its training state, none of it shared with other members."""

import copy
import functools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from pytorch_lightning import LightningModule

from nasflow.errors import ConfigError, TrialError
from nasflow.evaluator.candidate import Candidate
from nasflow.evaluator.lightning import takes_index
from nasflow.training.member.metric_log import Logbook, batch_size_of
from nasflow.training.member.metric_states import load_metric_states, metric_states, reset_metrics
from nasflow.training.member.optimization import EarlyStop, Fitting
from nasflow.training.member.rng import RngStream

_NOT_CALLED = (
    *("on_train_start", "on_train_batch_start", "on_train_batch_end"),
    *("on_validation_start", "on_validation_batch_start", "on_validation_batch_end"),
    *("on_before_backward", "backward", "on_after_backward", "on_before_optimizer_step", "optimizer_step"),
    *("on_before_zero_grad", "optimizer_zero_grad", "configure_gradient_clipping", "lr_scheduler_step"),
    *("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"),
    *("on_save_checkpoint", "on_load_checkpoint", "configure_model", "configure_callbacks"),
)

_EPOCH_HOOKS = ("on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start", "on_validation_epoch_end")


class TrainerView:
    """The `self.trainer` of a member's module: the job's Trainer, but with the member's own progress.

    The job's counters depend on which members are in it; a member's must not.
    """

    def __init__(self, trainer: Any, member: "Member", batches: float):
        self._trainer = trainer
        self._member = member
        self.num_training_batches = batches

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
        return self.num_training_batches * self._member.epochs

    def __getattr__(self, name: str) -> Any:
        return getattr(self._trainer, name)


class Member:
    """A trial being trained.

    Hooks of its LightningModule that are called: `setup("fit")`, `configure_optimizers`, `on_fit_start`,
    `on_train_epoch_start`, `training_step`, `on_validation_epoch_start`, `validation_step`,
    `on_validation_epoch_end`, `on_train_epoch_end`, and `log` / `log_dict` within them. Each runs within the
    member's own random stream. A module that overrides another training hook is refused, because without that hook it
    would not train as its author meant.

    Args:
        number: the trial's number.
        module: built within `rng`.
        candidate: what the module trains, with its config and number of parameters.

    Attributes:
        begun: batches of the running epoch that it trained before the job was interrupted; 0 for none.

    Raises:
        ConfigError: the module overrides a hook that is not called.
    """

    def __init__(self, number: int, module: LightningModule, candidate: Candidate, rng: RngStream):
        for name in _NOT_CALLED:
            if getattr(type(module), name) is not getattr(LightningModule, name):
                raise ConfigError(
                    f"evaluator: {type(module).__name__} overrides {name}, which is not called for members that share "
                    "a job; do its work in training_step, validation_step or an epoch hook"
                )
        config = candidate.training
        self.number = number
        self.module = module
        self.epochs = int(config.epochs)  # type: ignore[arg-type]
        self.finished_epochs = 0
        self.finished = False
        self.stopped_early = False
        self.pruned = False
        self.history: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self.rng = rng
        self._candidate = candidate
        self._config = config
        self._book = Logbook()
        self._early_stop = EarlyStop(config.early_stopping) if config.early_stopping else None
        self._started: Fitting | None = None
        self._busy = 0.0
        self.begun = 0
        self._are_weights_finite: bool | None = None  # None if not checked
        self._takes_index = {name: takes_index(getattr(module, name)) for name in ("training_step", "validation_step")}
        module.log = self._book.log  # type: ignore[method-assign]
        module.log_dict = self._book.log_dict  # type: ignore[method-assign,assignment]

    @functools.cached_property
    def parameters(self) -> int:
        """The number of its model's parameters; read only once it has no lazy layers."""
        return self._candidate.parameters

    @property
    def steps(self) -> int:
        """Optimizer steps made."""
        return self._started.steps if self._started else 0

    @property
    def fitting(self) -> Fitting:
        """Its optimizer and schedules."""
        if self._started is None:
            raise RuntimeError(f"trial {self.number} was not started")
        return self._started

    def attach(self, trainer: Any, stage: str, batches: float = math.inf) -> None:
        """Give the module its trainer and call its `setup(stage)`; an epoch has this many training `batches`."""
        self.module._trainer = TrainerView(trainer, self, batches)  # type: ignore[assignment]
        with self.rng:
            self.module.setup(stage)

    def start(self) -> None:
        """Make the optimizer, once the module is on its device in its precision."""
        with self.rng:
            clip = self._config.gradient_clip_val
            self._started = Fitting(
                self.module.configure_optimizers(),
                None if clip is None else float(clip),  # type: ignore[arg-type]
                self._config.gradient_clip_algorithm,
            )
            self.module.on_fit_start()

    def start_epoch(self) -> None:
        """Prepare for an epoch, and call the module's hook."""
        if not self.begun:
            self._busy = 0.0
        self._call_hook("on_train_epoch_start")

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one optimizer step on the shared batch.

        Raises:
            TrialError: the loss is not finite.
        """
        began = time.perf_counter()
        with self.rng:
            loss = loss_in(self.call_step("training_step", copied(batch), index))
            if loss is not None:
                self.check_loss(loss, index)
                self.fitting.step(loss)
            self.fitting.end_batch(index + 1)
        self._busy += time.perf_counter() - began

    def call_step(self, name: str, batch: Any, index: int) -> Any:
        """Return what `training_step` or `validation_step` returns. The step may write into the batch."""
        self._book.batch_size = batch_size_of(batch)
        step = getattr(self.module, name)
        return step(batch, index) if self._takes_index[name] else step(batch)

    def check_loss(self, loss: torch.Tensor, index: int) -> None:
        """Raise a TrialError if the loss of a batch is not finite."""
        if not torch.isfinite(loss):
            raise TrialError(f"training loss is {loss.item()} in epoch {self.finished_epochs + 1}, step {index}")

    def start_validation(self) -> None:
        """Call the module's hook before the first validation batch."""
        self._call_hook("on_validation_epoch_start")

    def validate_batch(self, batch: Any, index: int) -> None:
        """Score one validation batch."""
        began = time.perf_counter()
        with self.rng:
            self.call_step("validation_step", copied(batch), index)
        self._busy += time.perf_counter() - began

    def end_validation(self) -> None:
        """Call the module's hook after the last validation batch."""
        self._call_hook("on_validation_epoch_end")

    def end_epoch(self) -> None:
        """Close the epoch: record its metrics, step the schedules, and decide on early stopping.

        Raises:
            TrialError: a loss or a weight is not finite.
        """
        self._call_hook("on_train_epoch_end")
        metrics = self.metrics()
        self._refuse_not_finite(metrics)
        with self.rng if self.fitting.may_draw else nullcontext():  # entering it takes time
            self.fitting.end_epoch(self.finished_epochs + 1, metrics)
        stop = self._early_stop is not None and self._early_stop.update(metrics)
        self.finished_epochs += 1
        self.begun = 0
        self.history.append(metrics)
        self.seconds.append(self._busy)
        self.finished = stop or self.finished_epochs >= self.epochs
        self.stopped_early = stop and self.finished_epochs < self.epochs

    def stop(self) -> None:
        """End training after this epoch."""
        self.finished = self.stopped_early = True

    def prune(self) -> None:
        """End training after this epoch, because other members do better."""
        self.stop()
        self.pruned = True

    def note(self, metrics: dict[str, float], seconds: float, are_weights_finite: bool) -> None:
        """Take the results of an epoch from its unit, in place of its own steps."""
        self._are_weights_finite = are_weights_finite
        for name, value in metrics.items():
            self._book.log(name, value, batch_size=1)
        self._busy += seconds

    def take_sums(self, name: str) -> tuple[float, int]:
        """Return, and forget, the sum and the weight of what was logged under a name before an interruption."""
        return self._book.take(name)

    def give_sums(self, sums: Mapping[str, Sequence[float | int]], seconds: float) -> None:
        """Take from its unit what the running epoch's batches have logged and how long they took, before a save."""
        self._book.go_on(sums)
        self._busy += seconds

    def add_seconds(self, seconds: float) -> None:
        """Take its share of the time of a unit's steps."""
        self._busy += seconds

    def logged(self) -> dict[str, list[float | int]]:
        """Return of each number that was logged in this epoch the weighted sum and the sum of the weights."""
        return self._book.sums()

    def metrics(self) -> dict[str, float]:
        """Return what was logged since the last call."""
        return self._book.close_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue exactly; `packing.pack` takes it."""
        return {
            "epoch": self.finished_epochs,
            "parameters": self.parameters,
            "finished": self.finished,
            "stopped_early": self.stopped_early,
            "pruned": self.pruned,
            "history": self.history,
            "seconds": self.seconds,
            "module": dict(self.module.state_dict()),
            "fitting": self.fitting.state_dict(),
            "early_stop": self._early_stop.state_dict() if self._early_stop else None,
            "rng": self.rng.state_dict(),
        }

    def twin(self) -> "Member":
        """Return a member that trains as this one would, and shares nothing with it that training changes.

        Raises:
            Exception: whatever prevents the copy of something that its module holds.
        """
        twin = copy.copy(self)
        own = [*self.module.parameters(), *self.module.buffers()]
        memo: dict[int, Any] = {id(self.module._trainer): self.module._trainer}
        for tensor in own:  # a copy of a row would copy its whole stack
            values = tensor.detach().clone(memory_format=torch.contiguous_format)
            is_parameter = isinstance(tensor, torch.nn.Parameter)
            memo[id(tensor)] = torch.nn.Parameter(values, tensor.requires_grad) if is_parameter else values
        memo[id(self._book)] = twin._book = Logbook()
        twin.module = copy.deepcopy(self.module, memo)
        twin.rng = RngStream(0, self.rng.device)
        twin.rng.load_state_dict(self.rng.state_dict())
        with twin.rng:
            twin._started = Fitting(
                twin.module.configure_optimizers(), self.fitting.clip_val, self.fitting.clip_algorithm
            )
        twin._started.load_state_dict(self.fitting.state_dict())
        twin.rng.load_state_dict(self.rng.state_dict())
        return twin

    @property
    def can_stop_within(self) -> bool:
        """Whether all that an epoch has changed so far is known, so that it can be saved and continued.

        A module with a hook for the begin or the end of an epoch may collect anything for it.
        """
        return all(getattr(type(self.module), name) is getattr(LightningModule, name) for name in _EPOCH_HOOKS)

    def state_within(self, batches: int) -> dict[str, Any]:
        """Return all that is needed to continue after so many batches of the running epoch."""
        within = {
            "batches": batches,
            "sums": self._book.sums(),
            "busy": self._busy,
            "metrics": metric_states(self.module),
        }
        return {**self.state_dict(), "within": within}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state, after `start`."""
        if self.begun:
            reset_metrics(self.module)
        self.finished_epochs = state["epoch"]
        self.finished = state["finished"]
        self.stopped_early = state["stopped_early"]
        self.pruned = state["pruned"]
        self.history = state["history"]
        self.seconds = state["seconds"]
        self.module.load_state_dict(state["module"])
        self.fitting.load_state_dict(state["fitting"])
        if self._early_stop:
            self._early_stop.load_state_dict(state["early_stop"])
        self.rng.load_state_dict(state["rng"])
        within = state.get("within")
        self.begun = within["batches"] if within else 0
        self._book.go_on(within["sums"] if within else {})
        if within:
            self._busy = within["busy"]
            load_metric_states(self.module, within["metrics"])

    def _refuse_not_finite(self, metrics: dict[str, float]) -> None:
        for name, value in metrics.items():
            if "loss" in name and not float("-inf") < value < float("inf"):
                raise TrialError(f"{name} is {value} after epoch {self.finished_epochs + 1}")
        if self._are_weights_finite is None:
            weights = [p for p in self.module.parameters() if p.is_floating_point()]
            self._are_weights_finite = bool(torch.isfinite(torch.nn.utils.get_total_norm(weights)))
        finite, self._are_weights_finite = self._are_weights_finite, None
        if not finite:
            raise TrialError(f"weights are not finite after epoch {self.finished_epochs + 1}")

    def _call_hook(self, name: str) -> None:
        """Call a hook within the member's random stream, if its module overrides it: entering the stream takes time."""
        hook = getattr(self.module, name)
        if getattr(hook, "__func__", None) is not getattr(LightningModule, name):
            with self.rng:
                hook()


def loss_in(output: Any) -> torch.Tensor | None:
    """Return the loss that `training_step` returned; None skips the batch, as in Lightning."""
    loss: torch.Tensor | None = output["loss"] if isinstance(output, dict) else output
    return loss


def copied(batch: Any) -> Any:
    """Copy a batch, because a member that writes into it must not affect the others.

    `deepcopy` would copy the whole storage of a tensor that is a slice.
    """
    if isinstance(batch, torch.Tensor):
        return batch.clone()
    if type(batch) in (tuple, list):
        return type(batch)(map(copied, batch))
    if type(batch) is dict:
        return {key: copied(part) for key, part in batch.items()}
    return copy.deepcopy(batch)
