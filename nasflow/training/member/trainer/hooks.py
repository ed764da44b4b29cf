"""The hooks of a member: those that its LightningModule and its callbacks override."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import torch
from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.__version__ import version
from pytorch_lightning.callbacks import EarlyStopping

from nasflow.autocast import outside_steps

GRADIENT_HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""Called within an optimizer step that may be one for several members."""

OWN_STEP_HOOKS = (
    *("backward", "optimizer_step", "optimizer_zero_grad", "on_before_zero_grad", "configure_gradient_clipping"),
    "on_validation_model_zero_grad",
)
"""They change how a step is made, so that it can't be one for several members."""

_TRANSFER_HOOKS = ("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer")

BATCH_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end"),
    *("on_test_batch_start", "on_test_batch_end", *_TRANSFER_HOOKS),
)
"""Called for each batch."""

_IN_STEPS = frozenset((*GRADIENT_HOOKS, *OWN_STEP_HOOKS, *BATCH_HOOKS))

_EPOCH_HOOKS = (
    *("on_train_epoch_start", "on_train_epoch_end", "on_validation_epoch_start", "on_validation_epoch_end"),
    *("on_validation_start", "on_validation_end"),
)
AFTER_BATCHES = (
    *("on_train_epoch_end", "on_validation_epoch_end", "on_validation_end", "on_test_epoch_end", "on_test_end"),
)
"""Called when all batches have been seen, so that metrics over them are complete."""

_OTHERS = (
    *("setup", "configure_model", "on_fit_start", "on_train_start", *_EPOCH_HOOKS),
    *("on_test_start", "on_test_epoch_start", "on_test_epoch_end", "on_test_end"),
    *("on_train_end", "on_fit_end", "teardown", "lr_scheduler_step", "on_save_checkpoint", "on_load_checkpoint"),
)


class Around(NamedTuple):
    """The hooks before and after a step."""

    start: str
    end: str


STEPS = {
    "training_step": Around("on_train_batch_start", "on_train_batch_end"),
    "validation_step": Around("on_validation_batch_start", "on_validation_batch_end"),
    "test_step": Around("on_test_batch_start", "on_test_batch_end"),
}


NO_STATE: dict[str, Any] = {
    "callbacks": [],
    "checkpoint": {
        **{"pytorch-lightning_version": version, "loops": {}, "callbacks": {}},
    },
}
"""What is kept beside a checkpoint if no hook or callback may keep anything: keys that hooks expect, and nothing."""


class EndsEpochError(Exception):
    """`on_train_batch_start` returned -1, by which Lightning skips the rest of the epoch."""


class Hooks:
    """Calls hooks in Lightning's order: the callbacks', then the module's. One that nobody overrides costs nothing.

    They have the precision that Lightning gives them, which is not that of the steps around which they are called.

    Args:
        module: the member's.
        callbacks: that are called.
        given: those of the config, of which the module's may have replaced some.

    Attributes:
        callbacks: the member's own.
        default_dtype: outside of steps; None if steps have no other.
        names: the hooks that are overridden.
        running: the hook that is called at present, empty for none; with one of gradients within it, still the outer.
    """

    def __init__(self, module: LightningModule, callbacks: Sequence[Callback], given: Sequence[Callback] = ()):
        self._module = module
        self.callbacks = list(callbacks)
        own = [callback for callback in callbacks if all(callback is not other for other in given)]
        self._formerly = [*given, *own]  # in checkpoints from before some were replaced
        self.running = ""
        self.default_dtype: torch.dtype | None = None
        known = (*GRADIENT_HOOKS, *OWN_STEP_HOOKS, *BATCH_HOOKS, *_OTHERS)
        self._own = frozenset(name for name in known if _overrides(module, LightningModule, name))
        self._by_callbacks = {
            name: [callback for callback in self.callbacks if _overrides(callback, Callback, name)]
            for name in known
            if hasattr(Callback, name)
        }
        self.names = self._own | {name for name, overriding in self._by_callbacks.items() if overriding}

    @property
    def collect(self) -> bool:
        """Whether they may collect anything within an epoch: callbacks, and those for its begin, end and batches."""
        return bool(self.callbacks) or not self.names.isdisjoint((*_EPOCH_HOOKS, *BATCH_HOOKS, *GRADIENT_HOOKS))

    def call(self, name: str, *args: Any) -> Any:
        """Call a hook wherever it is overridden. Return what the module's own returns."""
        if name not in self.names:
            return None
        outer = self.running
        self.running = outer if outer and name in GRADIENT_HOOKS else name
        before, after = self._around(name)
        try:
            with self._in_precision_of(name):
                for callback in before:
                    getattr(callback, name)(self._module.trainer, self._module, *args)
                returned = getattr(self._module, name)(*args) if name in self._own else None
                for callback in after:
                    getattr(callback, name)(self._module.trainer, self._module, *args)
        finally:
            self.running = outer
        return returned

    def note_precision(self, precision: str) -> None:
        """Take note of the default dtype, outside of a step."""
        self.default_dtype = torch.get_default_dtype() if precision == "64-true" else None

    def _in_precision_of(self, name: str) -> AbstractContextManager[object]:
        in_step = name in GRADIENT_HOOKS and not self._module.automatic_optimization  # which calls them by itself
        if in_step or name == "configure_model":
            return nullcontext()
        # hooks of epochs are called outside of steps, and may change the default dtype for good
        kind = self.default_dtype if name in _IN_STEPS else None
        return outside_steps(self._module.device.type, kind)

    def _around(self, name: str) -> tuple[list[Callback], list[Callback]]:
        """Return the callbacks that are called before the module, and those after it, as Lightning does."""
        callbacks = self._by_callbacks.get(name, [])
        if name != "on_train_epoch_end":
            return callbacks, []
        return (
            [callback for callback in callbacks if not isinstance(callback, EarlyStopping)],
            [callback for callback in callbacks if isinstance(callback, EarlyStopping)],
        )

    def transferred(self, batch: Any) -> Any:
        """Return a batch after the module's transfer hooks, for which it is on its device already."""
        if self._own.isdisjoint(_TRANSFER_HOOKS):
            return batch
        module = self._module
        with outside_steps(module.device.type, self.default_dtype):
            if "on_before_batch_transfer" in self._own:
                batch = module.on_before_batch_transfer(batch, 0)
            if "transfer_batch_to_device" in self._own:
                batch = module.transfer_batch_to_device(batch, module.device, 0)
            if "on_after_batch_transfer" in self._own:
                batch = module.on_after_batch_transfer(batch, 0)
        return batch

    @property
    def have_state(self) -> bool:
        """Whether hooks or callbacks may keep something beside a checkpoint."""
        return bool(self.callbacks) or "on_save_checkpoint" in self.names

    def state_dict(self, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
        """Return what hooks and callbacks keep beside a Lightning `checkpoint`; None for nothing."""
        if not self.have_state:
            return None
        states = [callback.state_dict() for callback in self.callbacks]
        if "on_save_checkpoint" in self.names:
            checkpoint |= self._as_lightning_has_it(states)
        known = dict(checkpoint)
        self.call("on_save_checkpoint", checkpoint)
        changed = {key: value for key, value in checkpoint.items() if value is not known.get(key)}
        return {"callbacks": states, "checkpoint": changed}

    def _as_lightning_has_it(self, states: list[dict[str, Any]]) -> dict[str, Any]:
        """Return what else a checkpoint of Lightning's has; only what hooks change of it is kept."""
        trainer: Any = self._module.trainer
        pairs = zip(self.callbacks, states, strict=True)
        return {
            "pytorch-lightning_version": version,
            "loops": {},
            "callbacks": {callback.state_key: state for callback, state in pairs if state},
            "optimizer_states": [optimizer.state_dict() for optimizer in trainer.optimizers],
            "lr_schedulers": [entry.scheduler.state_dict() for entry in trainer.lr_scheduler_configs],
        }

    def load_state_dict(
        self,
        checkpoint: dict[str, Any],
        state: dict[str, Any],
        load: Callable[[dict[str, Any]], object],
        fitting: dict[str, Any],
    ) -> None:
        """Give hooks and callbacks what they have saved.

        Args:
            load: gives the module its weights, after its own hook, which may change these, and before the callbacks'.
            fitting: the saved state of optimizers and schedules.
        """
        found = fitting.get("optimizer", [])  # of a trial on several devices, they are elsewhere
        optimizers = found if isinstance(found, list) else [found]
        checkpoint |= {"optimizer_states": list(optimizers), "lr_schedulers": list(fitting["schedules"])}
        replaced = {**NO_STATE["checkpoint"], **state["checkpoint"]}
        of_hook = replaced.pop("state_dict", None)  # which may lack weights, or have averages in their place
        checkpoint |= replaced
        if "on_load_checkpoint" in self._own:
            self._module.on_load_checkpoint(checkpoint)
        load(checkpoint["state_dict"])
        if of_hook is not None:
            checkpoint["state_dict"] = of_hook
        for callback in self._by_callbacks["on_load_checkpoint"]:
            callback.on_load_checkpoint(self._module.trainer, self._module, checkpoint)
        if state is not NO_STATE:
            states = state["callbacks"]
            owners = self.callbacks if len(states) == len(self.callbacks) else self._formerly
            for callback, saved in zip(owners, states, strict=True):
                callback.load_state_dict(saved)


def _overrides(thing: object, base: type, name: str) -> bool:
    """Whether a class, or an instance by itself, has its own method in place of its base class's."""
    method = getattr(thing, name)
    return getattr(method, "__func__", method) is not getattr(base, name)
