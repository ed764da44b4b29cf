"""What a module is, apart from the values of its tensors: equal structures run the same program."""

import functools
import itertools
import operator
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

_PLAIN = frozenset(
    (
        bool,
        int,
        float,
        complex,
        str,
        bytes,
        type(None),
        torch.dtype,
        torch.device,
        torch.Size,
        type,
        torch.memory_format,
    )
)
_BOOKKEEPING = frozenset(vars(nn.Module()))
_INT = frozenset((int,))
_hooks_of = operator.itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MOST = 200_000

_numbers: dict[Hashable, int] = {}
_next_number = itertools.count()


class Same:
    """Stands for an object that equals only itself, and keeps it alive, so that its id stays its own."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def number_of(key: Hashable) -> int:
    """A number that stands for `key` in this process: nested keys are long to hash and to compare."""
    number = _numbers.get(key)
    if number is None:
        if len(_numbers) > _MOST:
            _numbers.clear()  # numbers are never given twice, so those that are out stay right
        number = _numbers[key] = next(_next_number)
    return number


class Structures:
    """Numbers of modules' structures, each module looked at once."""

    def __init__(self) -> None:
        self._own: dict[nn.Module, int] = {}
        self._whole: dict[nn.Module, int] = {}

    def own(self, module: nn.Module) -> int:
        """The class of a module, its plain attributes and its tensors' shapes; not its children."""
        number = self._own.get(module)
        if number is None:
            number = self._own[module] = number_of(own_structure(module))
        return number

    def whole(self, module: nn.Module) -> int:
        """The same, with its children and their names."""
        if not module._modules:
            return self.own(module)
        number = self._whole.get(module)
        if number is None:
            children = tuple(
                [(name, None if child is None else self.whole(child)) for name, child in module._modules.items()]
            )
            number = self._whole[module] = number_of(("whole", self.own(module), children))
        return number


def own_structure(module: nn.Module) -> Hashable:
    """What `Structures.own` numbers."""
    fields = module.__dict__
    names = _attributes(tuple(fields))
    # Comprehensions, for this is called for every layer of every candidate, and generators take longer.
    values = [fields[name] for name in names]
    kinds = tuple(map(type, values))
    for place in _not_plain(kinds):
        values[place] = _frozen(values[place])
    plain = (names, kinds, tuple(values))
    parameters = tuple([(name, tensor_structure(p)) for name, p in fields["_parameters"].items()])
    buffers = tuple([(name, tensor_structure(b)) for name, b in fields["_buffers"].items()])
    return (type(module), module.training, parameters, buffers, plain, is_hooked(module))


@functools.lru_cache(maxsize=4_096)
def _attributes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Those names of a module's fields that are not every module's."""
    return tuple(name for name in names if name not in _BOOKKEEPING)


@functools.lru_cache(maxsize=4_096)
def _not_plain(kinds: tuple[type, ...]) -> tuple[int, ...]:
    """The places of those that have to be frozen."""
    return tuple(place for place, kind in enumerate(kinds) if kind not in _PLAIN)


def _frozen(value: Any) -> Hashable:
    """`freeze`, sooner for what most of these are."""
    return value if type(value) is tuple and set(map(type, value)) <= _INT else freeze(value)


def tensor_structure(tensor: torch.Tensor | None) -> Hashable:
    """Shape, type, device and whether it trains; None for none."""
    if tensor is None:
        return None
    return (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)


def is_hooked(module: nn.Module) -> bool:
    """Whether something listens to its calls or its gradients, or takes their place: only a real call satisfies it."""
    fields = module.__dict__
    if any(_hooks_of(fields)) or "forward" in fields:
        return True
    for parameter in fields["_parameters"].values():
        if parameter is not None and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            return True
    return False


def freeze(value: Any) -> Hashable:
    """A hashable that equals another one only where the values can take each other's place."""
    if type(value) in _PLAIN:
        return (type(value), value)
    if isinstance(value, tuple | list):
        return (type(value), tuple(freeze(item) for item in value))
    if isinstance(value, dict):
        return (dict, tuple((freeze(key), freeze(item)) for key, item in value.items()))
    if isinstance(value, functools.partial):
        return (functools.partial, freeze(value.func), freeze(value.args), freeze(value.keywords))
    if isinstance(value, deque):
        return (deque, tuple(freeze(item) for item in value))
    if isinstance(value, set | frozenset):
        return (type(value), frozenset(freeze(item) for item in value))
    return Same(value)


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Whatever runs inside, the attributes of a module and of its parts are as before, and its buffers and generators.

    Containers of Python's own are looked into, objects of other classes are not.
    """
    restore: list[Callable[[], object]] = []
    _keep(module, restore, set())
    try:
        yield
    finally:
        for action in restore:
            action()


def _keep(value: Any, restore: list[Callable[[], object]], seen: set[int]) -> None:
    if type(value) in _PLAIN or id(value) in seen or isinstance(value, nn.Parameter):
        return
    seen.add(id(value))
    inner: list[Any] = []
    if isinstance(value, nn.Module):
        fields = value.__dict__
        for kept in (fields, value._buffers):
            restore.append(functools.partial(_refill, kept, kept.update, dict(kept)))
        inner = [item for name, item in fields.items() if name not in _BOOKKEEPING]
        inner += [*value._buffers.values(), *value._modules.values()]
    elif isinstance(value, dict):
        inner = list(value.values())
        restore.append(functools.partial(_refill, value, value.update, dict(value)))
    elif isinstance(value, list | deque):
        inner = list(value)
        restore.append(functools.partial(_refill, value, value.extend, inner))
    elif isinstance(value, set):
        restore.append(functools.partial(_refill, value, value.update, set(value)))
    elif isinstance(value, tuple):
        inner = list(value)
    elif isinstance(value, torch.Generator):
        restore.append(functools.partial(value.set_state, value.get_state()))
    elif isinstance(value, torch.Tensor):
        restore.append(functools.partial(value.detach().copy_, value.detach().clone()))
    for item in inner:
        _keep(item, restore, seen)


def _refill(container: Any, fill: Callable[[Any], object], content: Any) -> None:
    container.clear()
    fill(content)
