"""The parts of a LightningModule at whose calls the steps of several members meet."""

from collections.abc import Iterable
from typing import NamedTuple

import torch
from pytorch_lightning import LightningModule
from torch import nn

from nasflow.merge.trace.signature import is_hooked


class Form(NamedTuple):
    """How a part was called."""

    path: str
    training: bool
    grad: bool
    reads_grad: bool
    shape: torch.Size


class Parts:
    """The layers of one member's module that a unit computes, none within another.

    Args:
        paths: their names in the module, such as `model.encoder`.

    Attributes:
        modules: the layers by path.
        names: the module's attributes that are such layers, or hold some.
    """

    def __init__(self, module: LightningModule, paths: Iterable[str]):
        self.modules = {path: module.get_submodule(path) for path in paths}
        self._paths = {id(part): path for path, part in self.modules.items()}
        self._around: set[int] = set()
        self._known = {id(layer) for layer in module.modules()}
        self.names = [name for name, child in module._modules.items() if child is not None and self._leads(child)]

    def path_of(self, layer: nn.Module) -> str | None:
        """Return the path of a layer that is a part."""
        return self._paths.get(id(layer))

    def opens(self, layer: nn.Module) -> bool:
        """Whether the forward of a layer that holds parts runs step by step."""
        if id(layer) not in self._known:  # such as a slice of a Sequential
            return can_open(layer) and any(id(inner) in self._paths for inner in layer.modules())
        return id(layer) in self._around

    def _leads(self, layer: nn.Module) -> bool:
        """Whether a layer is a part, or holds one."""
        if id(layer) in self._paths:
            return True
        leads = [self._leads(child) for child in layer._modules.values() if child is not None]
        if any(leads) and can_open(layer):
            self._around.add(id(layer))
        return any(leads)


def can_open(layer: nn.Module) -> bool:
    """Whether a layer's methods work as well with a proxy for `self`: torch's own look into it, and hooks need it."""
    kind = type(layer)
    is_plain = kind is nn.Sequential or not kind.__module__.startswith("torch.")
    return is_plain and bool(layer._modules) and not is_hooked(layer)
