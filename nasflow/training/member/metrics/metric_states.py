"""The states of a module's torchmetrics within an epoch, which its state dict does not have."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torchmetrics
from torch import nn
from torch.utils._pytree import tree_map_only


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


def reset_metrics(module: nn.Module) -> None:
    """Let the metrics of a module begin again."""
    for _, metric in _metrics(module):
        metric.reset()


def _to(device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda tensor: tensor.to(device)


def _metrics(module: nn.Module) -> Iterator[tuple[str, torchmetrics.Metric]]:
    return ((name, part) for name, part in module.named_modules() if isinstance(part, torchmetrics.Metric))
