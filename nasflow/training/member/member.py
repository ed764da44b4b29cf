"""One trial inside a job: all of its training state, none of it shared with other members."""

import copy
import functools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule

from nasflow.errors import ConfigError, TrialError
from nasflow.evaluator.callbacks import refuse_unfit
from nasflow.evaluator.candidate import Candidate
from nasflow.evaluator.lightning import takes_index
from nasflow.training.member.batches import copied
from nasflow.training.member.hooks import BATCH_HOOKS, GRADIENT_HOOKS, STEPS, EndsEpochError, Hooks
from nasflow.training.member.metric_log import Logbook, batch_size_of
from nasflow.training.member.metric_states import load_metric_states, metric_states, reset_metrics
from nasflow.training.member.optimization import EarlyStop, Fitting
from nasflow.training.member.own_step import make_step, outputs_of
from nasflow.training.member.rng import RngStream
from nasflow.training.member.trainer_view import TrainerView

_EPOCH_HOOKS = ("on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start", "on_validation_epoch_end")


class Member:
    """A trial being trained.

    Its LightningModule's hooks for training and validation are called as Lightning calls them, and so are its
    callbacks', each within the member's own random stream.

    Args:
        number: the trial's number. A job numbers the members of a trial that has several.
        module: built within `rng`.
        candidate: what the module trains, with its config and number of parameters.
        callbacks: its own, beside those of the module's `configure_callbacks`.

    Attributes:
        trial: the trial's number.
        begun: batches of the running epoch that it trained before the job was interrupted; 0 for none.
        config: how it is trained, without searched values.
        batch_index: of the running or last training step in its epoch.
        hooks: of module and callbacks.
        is_manual: whether the module steps its optimizers in its `training_step`.

    Raises:
        ConfigError: the config clips gradients, which a module that steps its optimizers must do itself, or a callback
            is one that a trial can't have.
    """

    def __init__(
        self,
        number: int,
        module: LightningModule,
        candidate: Candidate,
        rng: RngStream,
        callbacks: Sequence[Callback] = (),
    ):
        config = candidate.training
        own = module.configure_callbacks()
        own = own if isinstance(own, Sequence) else [own]
        for callback in own:
            refuse_unfit(callback, f"{type(module).__name__}.configure_callbacks: {type(callback).__name__}")
        self.hooks = Hooks(module, [*callbacks, *own])
        self.is_manual = not module.automatic_optimization
        if self.is_manual and config.gradient_clip_val is not None:
            raise ConfigError(
                f"evaluator.gradient_clip_val: {type(module).__name__} optimizes manually; call self.clip_gradients in "
                "its training_step instead"
            )
        self.number = self.trial = number
        self.module = module
        self.epochs = int(config.epochs)  # type: ignore[arg-type]
        self._until = candidate.epochs
        self.finished_epochs = 0
        self.finished = False
        self.stopped_early = False
        self.pruned = False
        self.history: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self.rng = rng
        self._candidate = candidate
        self.config = config
        self._book = Logbook()
        self._early_stop = EarlyStop(config.early_stopping) if config.early_stopping else None
        self._started: Fitting | None = None
        self._busy = 0.0
        self.begun = 0
        self.batch_index = 0
        self._skips_epoch = False
        self._is_fitting = self._trains = False
        self._last_batch: Any = None  # of the running step, for the hook at its end
        self._are_weights_finite: bool | None = None  # None if not checked
        self._takes_index = {name: takes_index(getattr(module, name)) for name in STEPS}
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

    def attach(
        self, trainer: Any, stage: str, batches: float = math.inf, datamodule: LightningDataModule | None = None
    ) -> None:
        """Give the module its trainer and call its `setup(stage)`; an epoch has this many training `batches`."""
        self.module._trainer = TrainerView(trainer, self, batches, datamodule)  # type: ignore[assignment]
        with self.rng:
            self.hooks.call("setup", stage)
            self.hooks.call("configure_model")

    def start(self) -> None:
        """Make the optimizer, once the module is on its device in its precision."""
        with self.rng:
            self._started = self._make_fitting()

    def start_fit(self) -> None:
        """Call the hooks before all training. Like Lightning, a resumed member does so before its optimizer's state."""
        if not self._is_fitting:
            self._is_fitting = True
            self.call_hook("on_fit_start")

    def start_epoch(self) -> None:
        """Prepare for an epoch, and call the hooks."""
        if not self.begun:
            self._busy = 0.0
        self._skips_epoch = False
        if not self._trains:
            self._trains = True
            self.call_hook("on_train_start")
        self.call_hook("on_train_epoch_start")

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one optimizer step on the shared batch.

        Raises:
            TrialError: the loss is not finite.
        """
        began = time.perf_counter()
        self.batch_index = index
        if not self._skips_epoch:
            with self.rng:
                try:
                    make_step(self, batch, index)
                except EndsEpochError:
                    self._skips_epoch = True
                self.fitting.end_batch(index + 1)
        self._busy += time.perf_counter() - began

    def call_step(self, name: str, batch: Any, index: int) -> Any:
        """Return what `training_step` or `validation_step` returns. The step may write into the batch.

        Raises:
            EndsEpochError: a hook skips the rest of the epoch.
        """
        self._book.batch_size = batch_size_of(batch)
        batch = self.hooks.start_batch(name, batch, index)
        step = getattr(self.module, name)
        output = step(batch, index) if self._takes_index[name] else step(batch)
        if name == "training_step":
            self._last_batch = batch if "on_train_batch_end" in self.hooks.names else None
        else:
            self.hooks.call(STEPS[name].end, output, batch, index)
        return output

    def end_step(self, output: Any, index: int) -> None:
        """Call the hooks after an optimizer step, with what `training_step` returned."""
        if "on_train_batch_end" in self.hooks.names:
            batch, self._last_batch = self._last_batch, None
            self.hooks.call("on_train_batch_end", outputs_of(output), batch, index)

    def check_loss(self, loss: torch.Tensor, index: int) -> None:
        """Raise a TrialError if the loss of a batch is not finite."""
        if not torch.isfinite(loss):
            raise TrialError(f"training loss is {loss.item()} in epoch {self.finished_epochs + 1}, step {index}")

    def start_validation(self) -> None:
        """Call the hooks before the first validation batch."""
        self.call_hook("on_validation_start")
        self.call_hook("on_validation_epoch_start")

    def validate_batch(self, batch: Any, index: int, step: str = "validation_step") -> None:
        """Score one validation batch, or a batch of test data by the `test_step`."""
        began = time.perf_counter()
        with self.rng:
            self.call_step(step, copied(batch), index)
        self._busy += time.perf_counter() - began

    def end_validation(self) -> None:
        """Call the hooks after the last validation batch."""
        self.call_hook("on_validation_epoch_end")
        self.call_hook("on_validation_end")

    def end_epoch(self) -> None:
        """Close the epoch: record its metrics, step the schedules, and decide on early stopping.

        Raises:
            TrialError: a loss or a weight is not finite.
        """
        self.call_hook("on_train_epoch_end")
        metrics = self.metrics()
        self._refuse_not_finite(metrics)
        with self.rng if self.fitting.may_draw else nullcontext():  # entering it takes time
            self.fitting.end_epoch(self.finished_epochs + 1, metrics)
        stop = self._early_stop is not None and self._early_stop.update(metrics)
        stop |= bool(self.module.trainer.should_stop)
        self.finished_epochs += 1
        self.begun = 0
        self.history.append(metrics)
        self.seconds.append(self._busy)
        self.finished = stop or self.finished_epochs >= self._until
        self.stopped_early = stop and self.finished_epochs < self._until

    def end_training(self) -> None:
        """Call the hooks after the last epoch, which may still change the weights; none if the trial may go on."""
        if self.finished_epochs < self.epochs and not self.stopped_early:
            return
        self.call_hook("on_train_end")
        self.call_hook("on_fit_end")
        self.call_hook("teardown", "fit")

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

    def logged_so_far(self) -> dict[str, float]:
        """Return what it logged in its last epoch, with the means of what it has logged since."""
        now = {name: total / count for name, (total, count) in self._book.sums().items()}
        return {**(self.history[-1] if self.history else {}), **now}

    def metrics(self) -> dict[str, float]:
        """Return what was logged since the last call."""
        return self._book.close_epoch()

    def state_dict(self) -> dict[str, Any]:
        """Return all that is needed to continue exactly; `packing.pack` takes it."""
        weights = dict(self.module.state_dict())
        hooks = self.hooks.state_dict(self._checkpoint(weights, self.steps))
        return {
            "epoch": self.finished_epochs,
            "parameters": self.parameters,
            "finished": self.finished,
            "stopped_early": self.stopped_early,
            "pruned": self.pruned,
            "history": self.history,
            "seconds": self.seconds,
            "module": weights,
            "frozen": [name for name, parameter in self.module.named_parameters() if not parameter.requires_grad],
            "fitting": self.fitting.state_dict(),
            "early_stop": self._early_stop.state_dict() if self._early_stop else None,
            "rng": self.rng.state_dict(),
            **({"hooks": hooks} if hooks else {}),
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
        twin.hooks = Hooks(twin.module, [])  # a callback may keep anything, which a try must not change
        twin.rng = RngStream(0, self.rng.device)
        twin.rng.load_state_dict(self.rng.state_dict())
        with twin.rng:
            twin._started = twin._make_fitting()
        twin._started.load_state_dict(self.fitting.state_dict())
        twin.rng.load_state_dict(self.rng.state_dict())
        return twin

    @property
    def can_stop_within(self) -> bool:
        """Whether all that an epoch has changed so far is known, so that it can be saved and continued.

        A module with a hook for the begin or the end of an epoch may collect anything for it, and so may callbacks.
        """
        return not self.hooks.callbacks and self.hooks.names.isdisjoint((*_EPOCH_HOOKS, *BATCH_HOOKS, *GRADIENT_HOOKS))

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
        if "frozen" in state:  # a hook may have changed it since the module was made
            for name, parameter in self.module.named_parameters():
                parameter.requires_grad_(name not in state["frozen"])
        if hooks := state.get("hooks"):
            self.hooks.load_state_dict(self._checkpoint(state["module"], state["fitting"]["steps"]), hooks)
        self.start_fit()
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

    def call_hook(self, name: str, *args: Any) -> None:
        """Call a hook within the member's random stream, if it is overridden: entering the stream takes time."""
        if name in self.hooks.names:
            with self.rng:
                self.hooks.call(name, *args)

    def _make_fitting(self) -> Fitting:
        clip = self.config.gradient_clip_val
        return Fitting(
            self.module.configure_optimizers(),
            None if clip is None else float(clip),  # type: ignore[arg-type]
            self.config.gradient_clip_algorithm,
            manual=self.is_manual,
            step_schedule=self.module.lr_scheduler_step if "lr_scheduler_step" in self.hooks.names else None,
        )

    def _checkpoint(self, weights: dict[str, Any], steps: int) -> dict[str, Any]:
        """Return what Lightning's hooks for checkpoints get."""
        return {"state_dict": weights, "epoch": self.finished_epochs, "global_step": steps}
