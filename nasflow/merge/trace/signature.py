"""Structures of modules, without the values of their tensors: equal structures run the same program."""

import argparse
import copy
import functools
import itertools
import operator
import pickle
import random
import sys
from collections import deque
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import fx, nn

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
_NAMESPACES = (SimpleNamespace, argparse.Namespace)
_BOOKKEEPING = frozenset(vars(nn.Module()))
_INT = frozenset((int,))
_hooks_of = operator.itemgetter("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_MOST = 200_000
_MOST_HELD = 256
_MOST_SEEN = 1_024
_MOST_CLASSES = 4_096
_NOT_USERS = sys.stdlib_module_names | {"torch", "numpy", "nasflow"}

_numbers: dict[Hashable, int] = {}
_next_number = itertools.count()


class Same:
    """Wraps an object so that it equals only itself, and keeps it alive so that its id is not reused."""

    def __init__(self, thing: Any):
        self.thing = thing

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.thing is other.thing

    def __hash__(self) -> int:
        return id(self.thing)


def number_of(key: Hashable) -> int:
    """Return a number that represents `key` in this process, because nested keys are slow to hash and to compare."""
    number = _numbers.get(key)
    if number is None:
        if len(_numbers) > _MOST:
            _numbers.clear()  # numbers are never reused, so those handed out stay valid
        number = _numbers[key] = next(_next_number)
    return number


class Structures:
    """Numbers of modules' structures; each module is examined once."""

    def __init__(self) -> None:
        self._own: dict[nn.Module, int] = {}
        self._whole: dict[nn.Module, int] = {}
        self._held: dict[nn.Module, list[int]] = {}

    def own(self, module: nn.Module) -> int:
        """Return a number for the module's class, plain attributes and tensors' shapes, without its children."""
        number = self._own.get(module)
        if number is None:
            number = self._own[module] = number_of(own_structure(module))
        return number

    def whole(self, module: nn.Module) -> int:
        """Return a number for the same with its children and their names, and with what is in several places of it."""
        if not module._modules:
            return self.own(module)
        number = self._whole.get(module)
        if number is None:
            children = tuple(
                [(name, None if child is None else self.whole(child)) for name, child in module._modules.items()]
            )
            key = ("whole", self.own(module), children, _repeats(self._ids(module)))
            number = self._whole[module] = number_of(key)
        return number

    def _ids(self, module: nn.Module) -> list[int]:
        """Return the ids of a module, its tensors and its children's, in order, as often as they are there."""
        found = self._held.get(module)
        if found is None:
            found = self._held[module] = [id(module), *_tensor_ids(module.__dict__)]
            for child in module._modules.values():
                if child is not None:
                    found += self._ids(child)
        return found


def own_structure(module: nn.Module) -> Hashable:
    """Return the key that `Structures.own` numbers."""
    fields = module.__dict__
    names = _attributes(tuple(fields))
    # Comprehensions, because this is called for every layer of every candidate, and generators are slower.
    values = [fields[name] for name in names]
    kinds = tuple(map(type, values))
    held: list[Any] = []
    for place in _not_plain(kinds):
        value = values[place]
        if kinds[place] in (tuple, list) and set(map(type, value)) <= _INT:  # the most common ones
            values[place] = tuple(value)
        else:
            values[place] = freeze(value)
            held.append(value)
    plain = (names, kinds, tuple(values), _contents(held) if held else ())
    parameters = tuple([(name, tensor_structure(p)) for name, p in fields["_parameters"].items()])
    buffers = tuple([(name, tensor_structure(b)) for name, b in fields["_buffers"].items()])
    repeats = _repeats(_tensor_ids(fields))
    return (type(module), module.training, parameters, buffers, repeats, plain, is_hooked(module))


def _tensor_ids(fields: dict[str, Any]) -> list[int]:
    """Return the ids of a module's own parameters and buffers, given its fields."""
    tensors = [*fields["_parameters"].values(), *fields["_buffers"].values()]
    return [id(tensor) for tensor in tensors if tensor is not None]


def _repeats(ids: list[int]) -> tuple[int, ...]:
    """Return for each position which of the different ids is there; nothing if all are different."""
    if len(set(ids)) == len(ids):
        return ()
    order: dict[int, int] = {}
    return tuple([order.setdefault(one, len(order)) for one in ids])


@functools.lru_cache(maxsize=4_096)
def _attributes(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a module's fields that not every module has."""
    return tuple(name for name in names if name not in _BOOKKEEPING)


@functools.lru_cache(maxsize=4_096)
def _not_plain(kinds: tuple[type, ...]) -> tuple[int, ...]:
    """Return the positions of values that have to be frozen."""
    return tuple(place for place, kind in enumerate(kinds) if kind not in _PLAIN)


def _contents(values: Sequence[Any]) -> Hashable:
    """Return the settings in objects that a forward may read: plain values, and functions, at the moment.

    Those of users' classes, dicts, tuples, and captured variables, of which a trace keeps what it has read. Tensors and
    lists are left out: objects that hooks put their findings into have them, and a trace reads none there.
    """
    found: list[Hashable] = []
    seen: set[int] = set()  # of objects that stay alive meanwhile, so no id is reused
    to_see = list(values)
    while to_see and len(seen) < _MOST_SEEN:
        value = to_see.pop()
        if type(value) in _PLAIN or id(value) in seen or isinstance(value, nn.Module | torch.Tensor):
            continue
        seen.add(id(value))
        held = _referred(value)
        if len(held) <= _MOST_HELD:  # what holds more is no setting, but a vocabulary, or data
            if not isinstance(value, list | deque):
                found.append(tuple(freeze(item) for item in held if _is_setting(item)))
            to_see += held
    return tuple(found)


def _is_setting(value: Any) -> bool:
    return value is not None and (type(value) in _PLAIN or isinstance(value, FunctionType | BuiltinFunctionType))


def tensor_structure(tensor: torch.Tensor | None) -> Hashable:
    """Return shape, type, device and whether the tensor is trained; None for None."""
    if tensor is None:
        return None
    return (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)


def put_back(tensor: torch.Tensor, values: torch.Tensor) -> None:
    """Write values into a tensor unless it already has them, so that an unchanged one keeps sharing its memory.

    Autograd does not take this for a change of what it has saved for a backward.
    """
    if tensor.layout is not torch.strided or not torch.equal(tensor, values):  # torch can't compare sparse ones
        tensor.data.copy_(values)


def is_hooked(module: nn.Module) -> bool:
    """Whether only a real call will do: hooks listen to its calls or gradients, or `forward` or a call is replaced."""
    fields = module.__dict__
    if any(_hooks_of(fields)) or "forward" in fields or has_own_call(type(module)):
        return True
    for parameter in fields["_parameters"].values():
        if parameter is not None and (parameter._backward_hooks or parameter._post_accumulate_grad_hooks):
            return True
    return False


def has_own_call(kind: type[nn.Module]) -> bool:
    """Whether a call of such a module does more than its forward; fx's only adds its code to errors."""
    return kind.__call__ is not nn.Module.__call__ and not issubclass(kind, fx.GraphModule)


def freeze(value: Any) -> Hashable:
    """Return a hashable that equals another one only if the values are interchangeable."""
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


def is_plain(value: Any) -> bool:
    """Whether a value is a constant of Python or torch, or a tuple of such, which nothing can change."""
    return type(value) in _PLAIN or (type(value) is tuple and all(map(is_plain, value)))


@contextmanager
def untouched(module: nn.Module) -> Iterator[None]:
    """Restore the attributes, buffers and generators of a module and its parts, whatever runs inside.

    The same holds for objects they refer to: containers, objects of users' classes, variables captured by functions;
    but not for iterators, nor for objects of Python's own library.
    """
    restore = [action for thing in _reachable(module) for action in _restorers(thing)]
    with ExitStack() as stack:  # which makes all calls, the last one first, even if one raises
        for action in reversed(restore):
            stack.callback(action)
        yield


def hidden_state(module: nn.Module) -> Hashable:
    """What a forward may change outside of modules: generators, objects of users' classes, captured variables."""
    return tuple([_hidden(thing) for thing in _reachable(module)])


def _reachable(module: nn.Module) -> list[Any]:
    """Return all mutable objects that a module or its parts refer to, except parameters."""
    found: list[Any] = []
    seen: set[int] = set()  # of objects that stay alive meanwhile, so no id is reused
    to_see: list[Any] = [module]
    while to_see:
        value = to_see.pop()
        if type(value) not in _PLAIN and id(value) not in seen and not isinstance(value, nn.Parameter):
            seen.add(id(value))
            found.append(value)
            to_see += _referred(value)
    return found


def _referred(value: Any) -> list[Any]:
    if isinstance(value, nn.Module):
        kind: Any = type(value)
        own = [item for name, item in value.__dict__.items() if name not in _BOOKKEEPING]
        hooks = [hook for hooks in _hooks_of(value.__dict__) for hook in hooks.values()]
        return [*own, *hooks, *_methods(kind), *value._buffers.values(), *value._modules.values()]
    if isinstance(value, dict):
        return list(value.values())
    if isinstance(value, list | deque | tuple):
        return list(value)
    if isinstance(value, FunctionType):
        return [*(value.__closure__ or ()), *(value.__defaults__ or ())]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, functools.partial):
        return [value.func, value.args, value.keywords]
    if isinstance(value, CellType):
        return _content(value)
    return list(vars(value).values()) if _is_of_user(value) else []


@functools.lru_cache(maxsize=_MOST_CLASSES)
def _methods(kind: Any) -> tuple[FunctionType, ...]:
    """Return methods of a user's class with captured variables, or with defaults, which they may change."""
    return tuple(
        method
        for base in kind.__mro__
        if not base.__module__.startswith("torch.")
        for method in vars(base).values()
        if isinstance(method, FunctionType) and (method.__closure__ or method.__defaults__)
    )


def _content(cell: CellType) -> list[Any]:
    try:
        return [cell.cell_contents]
    except ValueError:  # the cell is empty
        return []


def _is_of_user(value: Any) -> bool:
    """Whether the value is an object with its own state in its attributes."""
    if isinstance(value, type | ModuleType | torch.Tensor | nn.Module) or not hasattr(value, "__dict__"):
        return False
    return type(value) in _NAMESPACES or type(value).__module__.partition(".")[0] not in _NOT_USERS


def _restorers(value: Any) -> list[Callable[[], object]]:
    """Return functions that restore the value's present state."""
    if isinstance(value, torch.jit.ScriptModule):
        return [functools.partial(value.train, value.training)]
    if isinstance(value, nn.Module):
        return [functools.partial(_refill, kept, kept.update, dict(kept)) for kept in (value.__dict__, value._buffers)]
    if isinstance(value, dict | set):
        return [functools.partial(_refill, value, value.update, copy.copy(value))]
    if isinstance(value, list | deque):
        return [functools.partial(_refill, value, value.extend, list(value))]
    if isinstance(value, torch.Tensor):
        return [functools.partial(put_back, value.detach(), value.detach().clone())]
    if isinstance(value, torch.Generator):
        return [functools.partial(value.set_state, value.get_state())]
    if isinstance(value, random.Random):
        return [functools.partial(value.setstate, value.getstate())]
    if isinstance(value, np.random.RandomState):
        return [functools.partial(value.set_state, value.get_state())]
    if isinstance(value, np.random.Generator):
        return [functools.partial(setattr, value.bit_generator, "state", value.bit_generator.state)]
    if isinstance(value, CellType):
        return [functools.partial(setattr, value, "cell_contents", content) for content in _content(value)]
    if _is_of_user(value):
        return [functools.partial(_refill, vars(value), vars(value).update, dict(vars(value)))]
    return []


def _hidden(value: Any) -> Hashable:
    if isinstance(value, torch.Generator):
        return value.get_state().numpy().tobytes()
    if isinstance(value, random.Random):
        return value.getstate()
    if isinstance(value, np.random.RandomState):
        return pickle.dumps(value.get_state(legacy=False))
    if isinstance(value, np.random.Generator):
        return pickle.dumps(value.bit_generator.state)
    if isinstance(value, CellType):
        return freeze(_content(value))
    if isinstance(value, FunctionType):
        return freeze(value.__defaults__)
    return freeze(vars(value)) if _is_of_user(value) else None


def _refill(container: Any, fill: Callable[[Any], object], content: Any) -> None:
    container.clear()
    fill(content)
