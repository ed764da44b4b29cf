"""Initialize members' lazy layers before their sizes are needed."""

import logging
import math
from functools import partial
from typing import Any

import torch
from lightning_fabric.utilities.data import sized_len
from pytorch_lightning import Trainer
from torch import nn
from torch.utils._pytree import tree_map_only

from nasflow.evaluator.lazy_layers import complete
from nasflow.evaluator.loading.data_source import Data
from nasflow.space.lazy_layers import lazy_layers
from nasflow.training.member.batches import copied
from nasflow.training.member.configured import configured
from nasflow.training.member.member import Member
from nasflow.training.member.own_step import begin_step
from nasflow.training.member.trainer.hooks import Hooks

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
    _start(double)
    with double.rng, precision.train_step_context():
        given = copied(precision.convert_input(batch))  # which a hook or step may write into
        complete(double.module, begin_step(double, "training_step", given, 0))
    with member.rng, torch.no_grad():
        for name, (args, kwargs) in inputs.items():
            layers[name]._infer_parameters(layers[name], args, kwargs)  # type: ignore[operator]


def _start(double: Member) -> None:
    """Do what its `training_step` may rely on: make optimizers, and call the module's hooks before all steps.

    Some can't be made or called before the layers have their sizes, and need not be.
    """
    double.hooks = Hooks(double.module, [])  # a callback may do anything outside of the double
    try:
        with double.rng:
            double.fitting = configured(double)
            for name in _BEFORE:
                double.hooks.call(name)
    except Exception:  # of the user's own code
        logger.debug("trial %s: what comes before its steps needs sizes of lazy layers", double.trial, exc_info=True)
