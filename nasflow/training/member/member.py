"""One trial inside a job: all of its training state, none of it shared with other members."""

import functools
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from pytorch_lightning import Callback, LightningDataModule, LightningModule

from nasflow.evaluator.candidate import Candidate
from nasflow.evaluator.lightning import takes_index
from nasflow.merge.trace.counter_dropout import CounterDropout
from nasflow.tensors import load_saved
from nasflow.training.member import checks
from nasflow.training.member.average import Average
from nasflow.training.member.batches import copied
from nasflow.training.member.configured import configured
from nasflow.training.member.gradients import begin_gradients, clear_gradients, kept_gradients
from nasflow.training.member.metrics.metric_log import Logbook
from nasflow.training.member.metrics.metric_states import load_metric_states, metric_states, reset_metrics
from nasflow.training.member.metrics.reporting import record_of
from nasflow.training.member.optimization import EarlyStop, Fitting
from nasflow.training.member.own_step import call_step, make_step, outputs_of, run_step
from nasflow.training.member.rng import RngStream
from nasflow.training.member.saved_layout import SavedLayout
from nasflow.training.member.trained import where_model_is
from nasflow.training.member.trainer.hooks import AFTER_BATCHES, NO_STATE, STEPS, EndsEpochError, Hooks
from nasflow.training.member.trainer.modes import freeze_only, frozen_in
from nasflow.training.member.trainer.pace import Pace
from nasflow.training.member.trainer.trainer_view import TrainerView, give_trainer
from nasflow.training.member.twin import twin_of


class Member:
    """A trial being trained.

    Its LightningModule's hooks for training and validation are called as Lightning calls them, and so are its
    callbacks', each within the member's own random stream.

    Args:
        number: the trial's number. A job numbers the members of a trial that has several.
        module: built within `rng`.
        candidate: what the module trains, with its config and number of parameters.
        callbacks: its own, beside those of the module's `configure_callbacks`, which replace those of the same type.

    Attributes:
        trial: the trial's number.
        begun: batches of the running epoch that it trained before the job was interrupted; 0 for none.
        config: how it is trained, without searched values.
        device_index: of the device in its job that it trains on.
        average: of its weights, if the config asks for one.
        batch_index: of the running or last training step in its epoch.
        book: what it logs.
        last_batch: of the running step, if the hook at its end is overridden.
        hooks: of module and callbacks.
        is_joint: whether its steps run as one with those of others.
        without_gradients: whether its code has switched gradients off for good.
        pace: on which batches its optimizer steps.
        takes_index: of each step, whether it takes the batch's index.
        is_manual: whether the module steps its optimizers in its `training_step`.

    Raises:
        ConfigError: the config says how to step, which a module that steps its optimizers must do itself, or a
            callback or a hook is one that a trial can't have.
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
        checks.refuse_uncalled(module)
        self.hooks = Hooks(module, checks.callbacks_of(module, callbacks), callbacks)
        self.is_manual = not module.automatic_optimization
        if self.is_manual:
            checks.refuse_for_manual(module, config)
        self.pace = Pace(int(config.accumulate_grad_batches))  # type: ignore[arg-type]
        self.average = Average(config.ema and float(config.ema.decay))  # type: ignore[arg-type]
        self.number = self.trial = number
        self.module, self.book = module, Logbook()
        self.epochs = int(config.epochs)  # type: ignore[arg-type]
        self._until = candidate.epochs
        self.finished_epochs = 0
        self.finished = self.stopped_early = self.pruned = self.is_joint = self.without_gradients = False
        self.history: list[dict[str, float]] = []
        self.seconds: list[float] = []
        self.rng, self._candidate, self.config, self._layout = rng, candidate, config, SavedLayout()
        self._early_stop = EarlyStop(config.early_stopping) if config.early_stopping else None
        self._started: Fitting | None = None
        self._busy = 0.0
        self.device_index = self.begun = self.batch_index = self._steps_before = 0
        self._skips_epoch = self._is_fitting = self._trains = False
        self.last_batch: Any = None
        self._gradients: dict[str, torch.Tensor] = {}  # saved, to begin with
        self._are_weights_finite: bool | None = None  # None if not checked
        self.takes_index = {name: takes_index(getattr(module, name)) for name in STEPS}
        self.book.take_from(module, *self.hooks.callbacks)

    @functools.cached_property
    def parameters(self) -> int:
        """The number of its model's parameters; read only once it has no lazy layers."""
        return self._candidate.parameters

    @property
    def steps(self) -> int:
        """Optimizer steps made."""
        return self._started.steps if self._started else self._steps_before

    @property
    def fitting(self) -> Fitting:
        """Its optimizer and schedules."""
        if self._started is None:
            raise RuntimeError(f"trial {self.number} was not started")
        return self._started

    @fitting.setter
    def fitting(self, fitting: Fitting) -> None:
        self._started = fitting

    def attach(
        self, trainer: Any, stage: str, batches: float = math.inf, datamodule: LightningDataModule | None = None
    ) -> None:
        """Give the module its trainer and call its `setup(stage)`; an epoch has this many training `batches`."""
        self.pace.batches = batches
        give_trainer(self.module, TrainerView(trainer, self, batches, datamodule), self.rng.device)
        self.hooks.note_precision(self.config.precision)
        with self.rng:
            self.hooks.call("setup", stage)
            with trainer.precision_plugin.module_init_context():
                self.hooks.call("configure_model")

    def start(self) -> None:
        """Make the optimizer, once the module is on its device in its precision."""
        self.pace.refuse_unknown()
        with self.rng:
            self.fitting = configured(self)

    def set_progress(self, epochs: int, steps: int) -> None:
        """Say what it has trained before: that many epochs, and optimizer steps if it only scores now."""
        self.finished_epochs, self._steps_before = epochs, steps

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
            begin_gradients(self, self._gradients)
            frozen = frozen_in(self.module) if self.finished_epochs or self.begun else None
            self.call_hook("on_train_start")
            freeze_only(self.module, frozen)  # as it was saved, if it is resumed
        self.call_hook("on_train_epoch_start")

    def train_batch(self, batch: Any, index: int) -> None:
        """Make one optimizer step on the shared batch, or a part of it if gradients are accumulated.

        Raises:
            TrialError: the loss is not finite.
        """
        began, steps = time.perf_counter(), self.fitting.steps
        if not self._skips_epoch:
            with self.rng:
                output = None
                try:
                    output = make_step(self, batch, index)
                except EndsEpochError:
                    self._skips_epoch = True
                if self.pace.is_last(index):
                    self.fitting.end_batch(index + 1)
                if not self._skips_epoch:
                    self.end_step(output, index)
        self.average.settle(self.fitting.optimizers, self.fitting.steps > steps)
        self._busy += time.perf_counter() - began

    def call_step(self, name: str, batch: Any, index: int) -> Any:
        """Return what `training_step` or `validation_step` returns. The step may write into the batch.

        Raises:
            EndsEpochError: a hook skips the rest of the epoch.
        """
        return call_step(self, name, batch, index)

    def run_step(self, name: str, batch: Any, index: int) -> Any:
        """Return what a step returns on the batch of `begin_step`, for which some optimizers call it several times."""
        return run_step(self, name, batch, index)

    def end_step(self, output: Any, index: int) -> None:
        """Call the hooks after an optimizer step, with what `training_step` returned."""
        if "on_train_batch_end" in self.hooks.names:
            if index + 1 >= self.pace.batches:
                self.fitting.end_batches(self.finished_epochs + 1)
            batch, self.last_batch = self.last_batch, None
            self.hooks.call("on_train_batch_end", outputs_of(output, self.pace.accumulated), batch, index)

    def check_loss(self, loss: torch.Tensor, index: int) -> None:
        """Raise a TrialError if the loss of a batch is not finite, or no weight has a gradient by it."""
        checks.refuse_loss(loss, self.finished_epochs + 1, index)

    def start_validation(self) -> None:
        """Put the average of its weights in their place, and call the hooks before the first validation batch."""
        self._end_batches()
        clear_gradients(self)
        self.average.swap(True)
        self.call_hook("on_validation_start")
        self.call_hook("on_validation_epoch_start")

    def validate_batch(self, batch: Any, index: int, step: str = "validation_step") -> None:
        """Score one validation batch, or a batch of test data by the `test_step`."""
        began = time.perf_counter()
        with self.rng:
            self.call_step(step, copied(batch), index)
        self._busy += time.perf_counter() - began

    def end_validation(self) -> None:
        """Call the hooks after the last validation batch, and put the weights back."""
        self.book.next_part()
        self.call_hook("on_validation_epoch_end")
        self.call_hook("on_validation_end")
        self.average.swap(False)

    def end_epoch(self) -> None:
        """Close the epoch: record its metrics, step the schedules, and decide on early stopping.

        Raises:
            TrialError: a loss or a weight is not finite.
        """
        self._end_batches()
        self.call_hook("on_train_epoch_end")
        self.average.settle(self.fitting.optimizers)
        metrics, validated = self.metrics(), (self.finished_epochs + 1) % self.config.validate_every == 0
        checks.refuse_not_finite(self.module, metrics, self.finished_epochs + 1, self._are_weights_finite)
        self._are_weights_finite = None
        with self.rng if self.fitting.may_draw else nullcontext():  # entering it takes time
            self.fitting.end_epoch(self.finished_epochs + 1, metrics, validated)
        stop = self._early_stop is not None and self._early_stop.update(metrics, validated)
        stop |= validated and bool(self.module.trainer.should_stop)
        self.finished_epochs, self.begun = self.finished_epochs + 1, 0
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
            self.book.log(name, value, batch_size=1)
        self._busy += seconds

    def give_sums(self, sums: Mapping[str, Sequence[float | int]], seconds: float) -> None:
        """Take from its unit what the running epoch's batches have logged and how long they took, before a save."""
        self.book.go_on(sums)
        self._busy += seconds

    def add_seconds(self, seconds: float) -> None:
        """Take its share of the time of a unit's steps."""
        self._busy += seconds

    def logged_so_far(self) -> dict[str, float]:
        """Return what it logged in its last epoch, and means since; after the batches, torchmetrics, too."""
        now = self.book.so_far(computed=self.hooks.running in AFTER_BATCHES)
        return {**(self.history[-1] if self.history else {}), **now}

    def metrics(self) -> dict[str, float]:
        """Return what was logged since the last call."""
        return self.book.close_epoch()

    def state_dict(self, layout: SavedLayout | None = None) -> dict[str, Any]:
        """Return all that is needed to continue exactly; with a `layout`, for `Packer.pack` only."""
        if layout is None or self.average.tensors or self.hooks.have_state:
            weights: Any = dict(self.module.state_dict())
        else:
            weights = layout.weights(self.module)
        own = self.average.split(self.module, weights)
        hooks = self.hooks.state_dict(self._checkpoint(weights, self.steps))
        return {
            **record_of(self),
            "module": weights,
            "frozen": frozen_in(self.module) if isinstance(weights, dict) else [],
            "fitting": self.fitting.state_dict(layout),
            "early_stop": self._early_stop.state_dict() if self._early_stop else None,
            "should_stop": bool(self.module.trainer.should_stop),
            "rng": self.rng.state_dict(),
            **({"dropout": streams} if (streams := CounterDropout.streams_of(self.module)) else {}),
            **({"hooks": hooks} if hooks else {}),
            **({"not_averaged": own} if own else {}),
            **kept_gradients(self, None if self._trains else self._gradients),
            **where_model_is(self._candidate.model, self.module),
        }

    def state_to_save(self) -> dict[str, Any]:
        """Return what `state_dict` returns, for `Packer.pack`: what is the same at each checkpoint is made once."""
        return {**self.state_dict(self._layout), **self._layout.lists(history=self.history, seconds=self.seconds)}

    def twin(self) -> "Member":
        """Return a member that trains as this one would, and shares nothing with it that training changes.

        Raises:
            Exception: whatever prevents the copy of something that its module holds.
        """
        twin: Member = twin_of(self)
        return twin

    def can_stop_within(self, batches: int) -> bool:
        """Whether all that so many batches of an epoch have changed is known, so that it can be saved and continued.

        Accumulated gradients are not saved.
        """
        return self.pace.is_first(batches) and not self.hooks.collect

    def state_within(self, batches: int) -> dict[str, Any]:
        """Return all that is needed to continue after so many batches of the running epoch."""
        within = {
            "batches": batches,
            "sums": self.book.sums(),
            "busy": self._busy,
            "metrics": metric_states(self.module),
            "joint": self.is_joint,
        }
        return {**self.state_dict(), "within": within}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state, after `start`."""
        reset_metrics(self.module)
        self.finished, self.stopped_early, self.pruned = state["finished"], state["stopped_early"], state["pruned"]
        self.history, self.seconds = state["history"], state["seconds"]
        self.load_weights(state)
        self.start_fit()
        freeze_only(self.module, state.get("frozen"))
        self.fitting.load_state_dict(state["fitting"])
        self._gradients = state.get("gradients", {})
        if self._early_stop:
            self._early_stop.load_state_dict(state["early_stop"])
        self.module.trainer.should_stop = state.get("should_stop", False)
        self.rng.load_state_dict(state["rng"])
        CounterDropout.load_streams(self.module, state.get("dropout", {}))
        within = state.get("within")
        self.begun = within["batches"] if within else 0
        self.book.go_on(within["sums"] if within else {})
        if within:
            self._busy, self.is_joint = within["busy"], within.get("joint", False)
            load_metric_states(self.module, within["metrics"])

    def load_weights(self, state: dict[str, Any]) -> None:
        """Load of a saved state the weights, its progress, and what hooks and callbacks keep beside them."""
        self.set_progress(state["epoch"], state["fitting"]["steps"])
        own = state.get("not_averaged", {})
        checkpoint = self._checkpoint({**state["module"], **own}, state["fitting"]["steps"])
        load = functools.partial(load_saved, self.module, strict=self.module.strict_loading)
        self.hooks.load_state_dict(checkpoint, state.get("hooks", NO_STATE), load, state["fitting"])
        self.average.load(self.module, state["module"], own)
        freeze_only(self.module, state.get("frozen"))

    def call_hook(self, name: str, *args: Any) -> None:
        """Call a hook within the member's random stream, if it is overridden: entering the stream takes time."""
        if name in self.hooks.names:
            self.book.settle()
            with self.rng:
                self.hooks.call(name, *args)

    def _end_batches(self) -> None:
        """Step the schedules that follow the last training batch, unless that was done before its hook."""
        self.book.next_part()
        with self.rng if self.fitting.may_draw else nullcontext():  # entering it takes time
            self.fitting.end_batches(self.finished_epochs + 1)

    def _checkpoint(self, weights: dict[str, Any], steps: int) -> dict[str, Any]:
        """Return what Lightning's hooks for checkpoints get."""
        return {"state_dict": weights, "epoch": self.finished_epochs, "global_step": steps}
