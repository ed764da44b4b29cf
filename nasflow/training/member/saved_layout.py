"""The weights of a module and the states of its optimizers, in a form that is fast to pack at every checkpoint."""

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from itertools import chain
from operator import is_
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from nasflow.checkpoint.json_text import MisfitError
from nasflow.checkpoint.layout import DictText, JsonText, LaidOut, Layout, ListText
from nasflow.tensors import address

_TENSORS = {torch.Tensor, nn.Parameter}
_MOST_CHANGES = 5  # of a layout, which takes longer to make than to pack without
_OF_MODULE = ("state_dict", "_save_to_state_dict", "get_extra_state")


class SavedLayout:
    """The state dicts of a member's module and optimizers, whose layout is kept from one checkpoint to the next.

    That is possible where they are tensors only, in the places where torch has them: without hooks, extra states or
    own methods, and without what several members may share, such as frozen weights. Changes between checkpoints are
    noticed: of layers, parameters, buffers, shapes, states and hooks. Where they come often, no layout is kept.

    Args:
        after: the number of checkpoints, each of which `lists` ends, before there is a layout: to make it pays off only
            for trials that are saved more often.
    """

    def __init__(self, after: int = 2) -> None:
        self._known: dict[str, _Weights | _States] = {}
        self._changes: Counter[str] = Counter()
        self._lists: dict[str, ListText] = {}
        self._dicts: dict[str, DictText] = {}
        self._left = after

    def weights(self, module: nn.Module) -> LaidOut | dict[str, Any]:
        """Return what `module.state_dict()` returns, for `Packer.pack`; no `LaidOut` has frozen weights."""
        laid = self._laid("module", module, _Weights)
        return dict(module.state_dict()) if laid is None else laid

    def optimizer(self, position: int, optimizer: Optimizer) -> dict[str, Any]:
        """Return what `optimizer.state_dict()` returns, for `Packer.pack`."""
        laid = self._laid(f"optimizer {position}", optimizer, _States)
        if laid is None:
            return optimizer.state_dict()
        groups = [self.scalars(f"group {position}.{number}", group) for number, group in enumerate(_groups(optimizer))]
        return {"state": laid, "param_groups": groups}

    def scalars(self, name: str, tree: Any) -> Any:
        """Return a dict without tensors, which no other has the name of, for `Packer.pack`."""
        if self._left > 0 or not isinstance(tree, dict):
            return tree
        return self._dicts.setdefault(name, DictText()).written(tree)

    def lists(self, **lists: list[Any]) -> dict[str, JsonText | list[Any]]:
        """Return lists of numbers, or of dicts of numbers, that grow at their ends only, for `Packer.pack`."""
        if self._left > 0:
            self._left -= 1
            return {name: _written(items) for name, items in lists.items()}
        return {name: self._lists.setdefault(name, ListText()).written(items) for name, items in lists.items()}

    def _laid(self, key: str, thing: Any, kind: Callable[[Any], "_Weights | _States"]) -> LaidOut | None:
        if self._left > 0:
            return None
        known = self._known.get(key)
        laid = known.laid(thing) if known is not None else None
        if laid is None and self._changes[key] < _MOST_CHANGES and (known is None or known.layout is not None):
            self._changes[key] += 1
            known = self._known[key] = kind(thing)
            laid = known.laid(thing)
        return laid


class _Weights:
    """The layout of a module's state dict.

    Attributes:
        layout: None if there is none that can be kept.
    """

    def __init__(self, module: nn.Module):
        self._module = module
        self.layout: Layout | None = None
        parts = list(_as_saved(module))
        if not all(map(_is_plain, parts)):
            return
        # these objects stay as long as their modules; looking them up again would take longer than all else
        hooks = [found for part in parts for found in (part._state_dict_hooks, part._state_dict_pre_hooks)]
        nested, held = [part._modules for part in parts], [pair for part in parts for pair in _held_by(part)]
        self._empty = [*hooks, *(own for own in [*nested, *(own for own, _ in held)] if not own)]
        self._nested, self._held = list(filter(None, nested)), [(own, skipped) for own, skipped in held if own]
        self._parameters = [part._parameters for part in parts if part._parameters]
        self._names, self._children = self._find(), self._nest()
        if not any(hooks) and not self._has_frozen():
            saved = module.state_dict(keep_vars=True)
            self.layout = _layout_of(saved, list(saved.values()), self._tensors())

    def laid(self, module: nn.Module) -> LaidOut | None:
        """Return the module's state now; None if it has another layout, or frozen weights."""
        if self.layout is None or module is not self._module or any(self._empty):
            return None
        if self._find() != self._names or self._has_frozen() or not _are_same(self._nest(), self._children):
            return None
        return _laid(self.layout, self._tensors())

    def _nest(self) -> list[Any]:
        """Return the names and modules within each."""
        return _flat(_flat(own.items() for own in self._nested))

    def _find(self) -> list[list[str]]:
        """Return the names of what is saved, by `_held`."""
        return [
            [name for name, tensor in held.items() if tensor is not None and name not in skipped]
            for held, skipped in self._held
        ]

    def _tensors(self) -> list[torch.Tensor]:
        return [held[name] for (held, _), names in zip(self._held, self._names, strict=True) for name in names]

    def _has_frozen(self) -> bool:
        return any(own is not None and not own.requires_grad for held in self._parameters for own in held.values())


class _States:
    """The layout of an optimizer's states.

    Attributes:
        layout: None if there is none that can be kept.
    """

    def __init__(self, optimizer: Optimizer):
        self._optimizer = optimizer
        self.layout: Layout | None = None
        if type(optimizer).state_dict is not Optimizer.state_dict or "state_dict" in vars(optimizer):
            return
        self._trained = _trained_by(optimizer)
        self._keys = tuple(optimizer.state)
        # without dicts there is more than states of parameters; of a parameter in two groups, one number is saved
        if self._is_plain() and len({*map(id, self._trained)}) == len(self._trained):
            self._names = self._find()
            saved = optimizer.state_dict()["state"]
            self.layout = _layout_of(saved, _flat(own.values() for own in saved.values()), self._tensors())

    def laid(self, optimizer: Optimizer) -> LaidOut | None:
        """Return the optimizer's states now; None if they have another layout."""
        if self.layout is None or optimizer is not self._optimizer or not self._is_plain():
            return None
        if not _are_same(optimizer.state, self._keys) or not _are_same(_trained_by(optimizer), self._trained):
            return None
        return _laid(self.layout, self._tensors()) if self._find() == self._names else None

    def _is_plain(self) -> bool:
        own = self._optimizer
        if own._optimizer_state_dict_pre_hooks or own._optimizer_state_dict_post_hooks:
            return False
        return all(type(state) is dict for state in own.state.values())

    def _find(self) -> list[tuple[Any, ...]]:
        return list(map(tuple, self._optimizer.state.values()))

    def _tensors(self) -> list[Any]:
        return _flat(own.values() for own in self._optimizer.state.values())


def _layout_of(tree: dict[Any, Any], saved: Sequence[Any], tensors: Sequence[Any]) -> Layout | None:
    """Return the layout of a tree with the values `saved`; None unless these are `tensors`, and it can be kept.

    What shares memory is stored once, which no layout says.
    """
    if not _are_same(saved, tensors) or not {*map(type, tensors)} <= _TENSORS:
        return None
    try:
        layout = Layout(tree)
    except MisfitError:
        return None
    places = [address(tensor) for tensor in tensors if tensor.numel()]
    return layout if len({*places}) == len(places) else None


def _laid(layout: Layout, tensors: Sequence[Any]) -> LaidOut | None:
    return LaidOut(layout, tensors) if {*map(type, tensors)} <= _TENSORS and layout.fits(tensors) else None


def _are_same(some: Collection[Any], others: Collection[Any]) -> bool:
    """Whether both have the same objects in the same order."""
    return len(some) == len(others) and all(map(is_, some, others))


def _flat(collections: Iterable[Iterable[Any]]) -> list[Any]:
    return [*chain.from_iterable(collections)]


def _as_saved(module: nn.Module) -> Iterable[nn.Module]:
    """Return the modules in the order of `state_dict`, which saves a module twice that two have."""
    yield module
    if isinstance(module._modules, dict):
        for child in module._modules.values():
            if child is not None:
                yield from _as_saved(child)


def _is_plain(part: nn.Module) -> bool:
    """Whether a module saves its state as torch's modules do, and no buffer that members may share, as a constant."""
    kind: Any = type(part)
    if any(getattr(kind, name) is not getattr(nn.Module, name) or name in vars(part) for name in _OF_MODULE):
        return False
    if any(not isinstance(held, dict) for held in (part._modules, part._parameters, part._buffers)):
        return False  # of TorchScript
    is_changed = isinstance(part, _NormBase) and part.training
    return is_changed or part._buffers.keys() <= part._non_persistent_buffers_set


def _held_by(part: nn.Module) -> Iterable[tuple[dict[str, Any], Collection[str]]]:
    """Return what a module holds in the order of `state_dict`, each with the names that are not saved."""
    return (part._parameters, ()), (part._buffers, part._non_persistent_buffers_set)


def _trained_by(optimizer: Optimizer) -> list[nn.Parameter]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _written(items: list[Any]) -> JsonText | list[Any]:
    """Return the text of a list of numbers, or of dicts of numbers; the list itself if it is another, or may be."""
    try:
        text = json.dumps(items, allow_nan=False)  # in C
    except ValueError:
        return items
    return items if "$" in text else JsonText(text)


@lru_cache
def _numbers(first: int, count: int) -> JsonText:
    return JsonText(str([*range(first, first + count)]))


def _groups(optimizer: Optimizer) -> list[dict[str, Any]]:
    """Return the param groups with the numbers of their parameters, as in `state_dict`."""
    groups, first = [], 0
    for group in optimizer.param_groups:
        numbers = _numbers(first, count := len(group["params"]))
        first += count
        groups.append({**{name: value for name, value in group.items() if name != "params"}, "params": numbers})
    return groups
