"""The Lightning callbacks that a config names for each trial."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from nasflow.config.search import Target
from nasflow.errors import ConfigError
from nasflow.load_target import check_params, load_target

if TYPE_CHECKING:
    from pytorch_lightning import Callback


def make_callbacks(targets: Sequence[Target], base_dir: Path) -> "list[Callback]":
    """Return new callbacks for one trial.

    Raises:
        ConfigError: one can't be imported, is no callback, does not take its params, or does what nasflow does itself.
    """
    if not targets:
        return []
    from pytorch_lightning import Callback  # noqa: PLC0415 - slow to import

    callbacks = []
    for place, config in enumerate(targets):
        key = f"evaluator.callbacks.{place}"
        kind = load_target(config.target, base_dir)
        if not callable(kind):
            raise ConfigError(f"{key}: {config.target} is not callable; it should be a Callback class")
        check_params(key, config.target, kind, **config.params)
        callback = kind(**config.params)
        if not isinstance(callback, Callback):
            raise ConfigError(f"{key}: {config.target} gave a {type(callback).__name__}; it should give a Callback")
        refuse_unfit(callback, f"{key}: {config.target}")
        callbacks.append(callback)
    return callbacks


def refuse_unfit(callback: "Callback", name: str) -> None:
    """Raise ConfigError for a callback that a trial can't have, because trials share the Trainer that it changes.

    Args:
        name: the callback's, for the message.
    """
    from pytorch_lightning import callbacks  # noqa: PLC0415 - slow to import

    if isinstance(callback, callbacks.Checkpoint | callbacks.ProgressBar):
        raise ConfigError(f"{name} is not needed: nasflow saves every trial and shows its progress; leave it out")
    if isinstance(callback, callbacks.ModelPruning):
        raise ConfigError(
            f"{name} replaces parameters on the way, so a trial could not go on from its checkpoint; prune the model "
            "that the search has found instead"
        )
    instead = {
        callbacks.StochasticWeightAveraging: "use WeightAveraging",
        callbacks.GradientAccumulationScheduler: "set evaluator.accumulate_grad_batches",
        callbacks.LearningRateFinder: "search evaluator.optimizer.lr",
        callbacks.BatchSizeFinder: "search a param of evaluator.data",
        callbacks.LearningRateMonitor: "log the rate in on_train_epoch_end",
    }
    for kind, what_to_do in instead.items():
        if isinstance(callback, kind):
            raise ConfigError(f"{name} changes or needs the whole Trainer, which trials share; {what_to_do} instead")
