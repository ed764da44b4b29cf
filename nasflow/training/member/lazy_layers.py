"""Initialize members' lazy layers before their sizes are needed."""

from functools import partial
from typing import Any

import torch
from pytorch_lightning import Trainer
from torch import nn
from torch.utils._pytree import tree_map_only

from nasflow.evaluator.lazy_layers import complete
from nasflow.space.lazy_layers import lazy_layers
from nasflow.training.member.member import Member

_Call = tuple[tuple[Any, ...], dict[str, Any]]


def complete_member(member: Member, double: Member, batch: Any, trainer: Trainer) -> None:
    """Initialize a member's lazy layers with the sizes of their first inputs in its double.

    Their weights are drawn from the member's own stream, in the order in which the layers are reached. Nothing else in
    the member changes: statistics, buffers and counters in its code change only in the double.

    Args:
        member: just made, on the CPU.
        double: made from the same spec; not usable afterwards.
        batch: a training batch, on the trainer's device.
        trainer: the job's, for its precision and device.

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
    double.attach(trainer, "fit")
    precision.convert_module(double.module.to(trainer.strategy.root_device))
    with double.rng, precision.train_step_context():
        complete(double.module, precision.convert_input(batch))
    with member.rng, torch.no_grad():
        for name, (args, kwargs) in inputs.items():
            layers[name]._infer_parameters(layers[name], args, kwargs)  # type: ignore[operator]
