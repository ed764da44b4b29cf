"""The hooks of a member: those that its LightningModule and its callbacks override."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytorch_lightning import Callback, LightningModule
from pytorch_lightning.callbacks import EarlyStopping

GRADIENT_HOOKS = ("on_before_backward", "on_after_backward", "on_before_optimizer_step")
"""Called within an optimizer step that may be one for several members."""

OWN_STEP_HOOKS = (
    *("backward", "optimizer_step", "optimizer_zero_grad", "on_before_zero_grad", "configure_gradient_clipping"),
)
"""They change how a step is made, so that it can't be one for several members."""

BATCH_HOOKS = (
    *("on_train_batch_start", "on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end"),
    *("on_test_batch_start", "on_test_batch_end"),
    *("on_before_batch_transfer", "transfer_batch_to_device", "on_after_batch_transfer"),
)
"""Called for each batch."""

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
    "checkpoint": {"optimizer_states": (), "lr_schedulers": (), "loops": {}, "callbacks": {}},
}
"""What is kept beside a checkpoint if no hook or callback may keep anything: keys that hooks expect, and nothing."""


class EndsEpochError(Exception):
    """`on_train_batch_start` returned -1, by which Lightning skips the rest of the epoch."""


class Hooks:
    """Calls hooks in Lightning's order: the callbacks', then the module's. One that nobody overrides costs nothing.

    Attributes:
        callbacks: the member's own.
        names: the hooks that are overridden.
        running: the hook that is called at present, empty for none.
    """

    def __init__(self, module: LightningModule, callbacks: Sequence[Callback]):
        self._module = module
        self.callbacks = list(callbacks)
        self.running = ""
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
        outer, self.running = self.running, name
        before, after = self._around(name)
        for callback in before:
            getattr(callback, name)(self._module.trainer, self._module, *args)
        returned = getattr(self._module, name)(*args) if name in self._own else None
        for callback in after:
            getattr(callback, name)(self._module.trainer, self._module, *args)
        self.running = outer
        return returned

    def _around(self, name: str) -> tuple[list[Callback], list[Callback]]:
        """Return the callbacks that are called before the module, and those after it, as Lightning does."""
        callbacks = self._by_callbacks.get(name, [])
        if name != "on_train_epoch_end":
            return callbacks, []
        return (
            [callback for callback in callbacks if not isinstance(callback, EarlyStopping)],
            [callback for callback in callbacks if isinstance(callback, EarlyStopping)],
        )

    def start_batch(self, step: str, batch: Any, index: int) -> Any:
        """Call the hooks before a step, and return the batch for it.

        The module's transfer hooks are called with a batch that is on its device already.

        Raises:
            EndsEpochError: the member skips the rest of the epoch.
        """
        if not self.names.isdisjoint(BATCH_HOOKS):
            module = self._module
            if "on_before_batch_transfer" in self._own:
                batch = module.on_before_batch_transfer(batch, 0)
            if "transfer_batch_to_device" in self._own:
                batch = module.transfer_batch_to_device(batch, module.device, 0)
            if "on_after_batch_transfer" in self._own:
                batch = module.on_after_batch_transfer(batch, 0)
            if self.call(STEPS[step].start, batch, index) == -1 and step == "training_step":
                raise EndsEpochError
        return batch

    @property
    def have_state(self) -> bool:
        """Whether hooks or callbacks may keep something beside a checkpoint."""
        return bool(self.callbacks) or "on_save_checkpoint" in self.names

    def state_dict(self, checkpoint: dict[str, Any]) -> dict[str, Any] | None:
        """Return what hooks and callbacks keep beside a Lightning `checkpoint`; None for nothing."""
        if not self.have_state:
            return None
        known = dict(checkpoint)
        states = [callback.state_dict() for callback in self.callbacks]
        self.call("on_save_checkpoint", checkpoint)
        changed = {key: value for key, value in checkpoint.items() if value is not known.get(key)}
        return {"callbacks": states, "checkpoint": changed}

    def load_state_dict(
        self, checkpoint: dict[str, Any], state: dict[str, Any], load: Callable[[dict[str, Any]], object]
    ) -> None:
        """Give hooks and callbacks what they have saved.

        Args:
            load: gives the module its weights, after its own hook, which may change these, and before the callbacks'.
        """
        replaced = dict(state["checkpoint"])
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
            for callback, saved in zip(self.callbacks, state["callbacks"], strict=True):
                callback.load_state_dict(saved)


def _overrides(thing: object, base: type, name: str) -> bool:
    """Whether a class, or an instance by itself, has its own method in place of its base class's."""
    method = getattr(thing, name)
    return getattr(method, "__func__", method) is not getattr(base, name)
