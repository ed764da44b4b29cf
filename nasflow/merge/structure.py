"""What a module is, apart from the values of its tensors: equal structures run the same program."""

import functools
from collections.abc import Hashable
from typing import Any

import torch
from torch import nn

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size, type)
_BOOKKEEPING = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


class Same:
    """Stands for an object that equals only itself, and keeps it alive, so that its id stays its own."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def structure(module: nn.Module) -> Hashable:
    """The class of a module, its plain attributes, its tensors' shapes, and the same of its children."""
    return (
        *own_structure(module),
        tuple((name, structure(child)) for name, child in module._modules.items() if child is not None),
    )


def own_structure(module: nn.Module) -> tuple[Any, ...]:
    """`structure` without the children."""
    fields = module.__dict__
    return (
        type(module),
        module.training,
        tuple((name, tensor_structure(p)) for name, p in module._parameters.items()),
        tuple((name, tensor_structure(b)) for name, b in module._buffers.items()),
        tuple((name, freeze(fields[name])) for name in fields if name not in _BOOKKEEPING),
        is_hooked(module),
    )


def tensor_structure(tensor: torch.Tensor | None) -> Hashable:
    """Shape, type, device and whether it trains; None for none."""
    if tensor is None:
        return None
    return (tuple(tensor.shape), tensor.dtype, tensor.device, tensor.requires_grad)


def is_hooked(module: nn.Module) -> bool:
    """Whether something listens to the module's calls, which only a real call satisfies."""
    return any(getattr(module, name) for name in _HOOKS)


def freeze(value: Any) -> Hashable:
    """A hashable that equals another one only where the values can take each other's place."""
    if isinstance(value, _PLAIN):
        return (type(value), value)
    if isinstance(value, tuple | list):
        return (type(value), tuple(freeze(item) for item in value))
    if isinstance(value, dict):
        return (dict, tuple((freeze(key), freeze(item)) for key, item in value.items()))
    if isinstance(value, functools.partial):
        return (functools.partial, freeze(value.func), freeze(value.args), freeze(value.keywords))
    return Same(value)
