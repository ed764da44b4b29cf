"""The states of a module's torchmetrics within an epoch, which its state dict does not have."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.utils._pytree import tree_map_only
from torchmetrics.utilities import dim_zero_cat


def metric_states(module: nn.Module) -> dict[str, Any]:
    """Return the state of each metric in a module, by its place there."""
    return {
        name: {"values": dict(metric.metric_state), "updates": metric.update_count} for name, metric in _metrics(module)
    }


def load_metric_states(module: nn.Module, states: Mapping[str, Any]) -> None:
    """Let the metrics of a module continue from `metric_states` of an equal one; a new metric begins again."""
    for name, metric in _metrics(module):
        if name not in states:
            metric.reset()
            continue
        for key, value in states[name]["values"].items():
            setattr(metric, key, tree_map_only(torch.Tensor, _to(metric.device), value))
        metric._update_count, metric._computed = states[name]["updates"], None


def forget_rows(module: nn.Module, states: Mapping[str, Any]) -> None:
    """Let the metrics of a module continue from `metric_states` of this one, as if they had seen no samples since.

    Lists that were empty keep no rows of what they have got: of the same type and number of dimensions as on ranks with
    samples, whose lists torchmetrics puts together.
    """
    begun = {
        (name, key): torch.atleast_1d(values[0])[:0]
        for name, metric in _metrics(module)
        for key, values in metric.metric_state.items()
        if isinstance(values, list) and values and metric._reductions[key] is dim_zero_cat
    }
    load_metric_states(module, states)
    for name, metric in _metrics(module):
        for key, values in metric.metric_state.items():
            if (name, key) in begun and not values:
                setattr(metric, key, [begun[name, key]])


def reset_metrics(module: nn.Module) -> None:
    """Let the metrics of a module begin again."""
    for _, metric in _metrics(module):
        metric.reset()


def _to(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(device)


def _metrics(module: nn.Module) -> Iterator[tuple[str, torchmetrics.Metric]]:
    return ((name, part) for name, part in module.named_modules() if isinstance(part, torchmetrics.Metric))
