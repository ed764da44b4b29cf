"""Lazy layers: those whose sizes follow from their first input, such as `torch.nn.LazyLinear`."""

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy


def lazy_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers that wait for their first input, by name."""
    return {name: layer for name, layer in model.named_modules() if _waits(layer)}


def count_parameters(model: nn.Module) -> int:
    """How many numbers a model's parameters hold. A lazy layer's have none before its first input."""
    return sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter))


def _waits(layer: nn.Module) -> bool:
    if isinstance(layer, LazyModuleMixin):
        return hasattr(layer, "_initialize_hook")  # it is removed once the layer has seen an input
    own = (*layer._parameters.values(), *layer._buffers.values())
    return any(tensor is not None and is_lazy(tensor) for tensor in own)
