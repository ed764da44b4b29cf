"""Lazy layers: their sizes follow from the first input, such as `torch.nn.LazyLinear`."""

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _LazyNormBase
from torch.nn.modules.conv import _LazyConvXdMixin
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.parameter import is_lazy

from nasflow.tensors import load_saved


def lazy_layers(model: nn.Module) -> dict[str, nn.Module]:
    """Return the layers that have not had their first input, by name."""
    return {name: layer for name, layer in model.named_modules() if _waits(layer)}


def make_by_weights(model: nn.Module) -> None:
    """Initialize torch's own lazy layers from the weights loaded into them, if any. Others need their first input."""
    for layer in lazy_layers(model).values():
        own: Any = layer
        tensors = list(own.state_dict().values())
        if not tensors or any(map(is_lazy, tensors)):
            continue
        shape = tensors[0].shape
        if isinstance(own, nn.LazyLinear):
            own.in_features = shape[1]
        elif isinstance(own, _LazyConvXdMixin):
            own.in_channels = shape[0] if own.transposed else shape[1] * own.groups
        elif isinstance(own, _LazyNormBase):
            own.num_features = shape[0]
        else:
            continue
        own._infer_parameters(own, (own.weight,))  # a layer that has its weights uses only the last dimension


def load_lazy_layers(model: nn.Module, weights: Mapping[str, Any]) -> None:
    """Initialize torch's own lazy layers of a model by those of its weights, before all of them are loaded."""

    def waits(name: str, value: Any) -> bool:
        if not is_lazy(value) or name not in weights:
            return False
        return isinstance(model.get_submodule(name.rpartition(".")[0]), LazyModuleMixin)

    if lazy := {name: weights[name] for name, value in model.state_dict().items() if waits(name, value)}:
        load_saved(model, lazy, strict=False)
        make_by_weights(model)


def count_parameters(model: nn.Module) -> int:
    """Return the number of elements in a model's parameters; 0 for a lazy layer before its first input."""
    return sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter))


def _waits(layer: nn.Module) -> bool:
    if isinstance(layer, LazyModuleMixin):
        return hasattr(layer, "_initialize_hook")  # it is removed once the layer has seen an input
    own = (*layer._parameters.values(), *layer._buffers.values())
    return any(tensor is not None and is_lazy(tensor) for tensor in own)
