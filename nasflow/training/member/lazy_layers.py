"""Initialize members' lazy layers before their sizes are needed."""

import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning import Trainer
from pytorch_lightning.plugins import Precision
from torch import nn
from torch.utils._pytree import tree_map_only

from nasflow.evaluator.lazy_layers import complete
from nasflow.evaluator.loading.data_source import Data
from nasflow.space.lazy_layers import lazy_layers
from nasflow.training.member.batches import copied
from nasflow.training.member.configured import configured
from nasflow.training.member.member import Member
from nasflow.training.member.metrics.metric_log import batch_size_of
from nasflow.training.member.trainer.hooks import STEPS, Hooks

_BEFORE = ("on_fit_start", "on_train_start", "on_train_epoch_start")

logger = logging.getLogger(__name__)

_Call = tuple[tuple[Any, ...], dict[str, Any]]


def complete_member(member: Member, double: Member, batch: Any, trainer: Trainer, data: Data) -> None:
    """Initialize a member's lazy layers with the sizes of their first inputs in its double.

    Their weights are drawn from the member's own stream, in the order in which the layers are reached. Nothing else in
    the member changes: statistics, buffers and counters in its code change only in the double.

    Args:
        member: just made, on the CPU.
        double: made from the same spec; not usable afterwards.
        batch: a training batch, on the trainer's device.
        trainer: the job's, for its precision and device.
        data: what the member trains on.

    Raises:
        ConfigError: `batch` does not reach a lazy layer; the message names it.
        Exception: whatever the module's training step raises.
    """
    inputs: dict[str, _Call] = {}

    def note(name: str, layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name not in inputs:
            inputs[name] = tree_map_only(torch.Tensor, lambda tensor: tensor.detach().cpu(), (args, kwargs))

    layers = lazy_layers(member.module)
    for name in layers:
        double.module.get_submodule(name).register_forward_pre_hook(partial(note, name), prepend=True, with_kwargs=True)
    precision = trainer.precision_plugin
    double.attach(trainer, "fit", sized_len(data.train) or math.inf, data.module)
    precision.convert_module(double.module.to(trainer.strategy.root_device))
    _prepare(double)
    with double.rng:
        try:
            _try_step(double, batch, precision)
        except Exception:  # it may need what hooks before all steps make, which are not called for nothing
            for name in _BEFORE:
                _tolerated(double, partial(double.hooks.call, name))
            _try_step(double, batch, precision)
    with member.rng, torch.no_grad():
        for name, (args, kwargs) in inputs.items():
            layers[name]._infer_parameters(layers[name], args, kwargs)  # type: ignore[operator]


def _prepare(double: Member) -> None:
    """Make the optimizers on which its `training_step` may rely, and let it call no callbacks."""
    hooks = Hooks(double.module, [])  # a callback may do anything outside of the double
    hooks.callbacks, hooks.default_dtype = double.hooks.callbacks, double.hooks.default_dtype
    double.hooks = hooks

    def make_optimizers() -> None:
        double.fitting = configured(double)

    with double.rng:
        _tolerated(double, make_optimizers)


def _try_step(double: Member, batch: Any, precision: Precision) -> None:
    """Make a training step; it may fail once all layers have their sizes. Raises as `complete`."""
    try:
        with precision.train_step_context(), torch.enable_grad():
            given = copied(precision.convert_input(batch))  # which a hook or step may write into
            given = double.hooks.transferred(given)
            double.book.batch_size = batch_size_of(given)
            _tolerated(double, partial(double.hooks.call, STEPS["training_step"].start, given, 0))
            complete(double.module, given)
    except Exception:
        if lazy_layers(double.module):
            raise
        logger.debug("trial %s: a step fails after its lazy layers", double.trial, exc_info=True)


def _tolerated(double: Member, call: Callable[[], object]) -> None:
    """Call what may fail while layers have no sizes."""
    try:
        call()
    except Exception:  # of the user's own code
        logger.debug("trial %s: what comes before its steps needs sizes of lazy layers", double.trial, exc_info=True)
