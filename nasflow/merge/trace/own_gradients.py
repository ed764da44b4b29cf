"""Finds users' code that defines a backward, of which a trace of the forward shows nothing."""

import functools
from collections.abc import Iterator
from contextlib import suppress
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch.autograd import Function

_KNOWN = 4_096  # classes
_DEEPEST = 4  # calls from a method on


def has_own_gradients(kind: type) -> bool:
    """Whether methods of a user's class, or functions that they call by name, mention an autograd Function."""
    return _mentions_one(kind)


@functools.lru_cache(maxsize=_KNOWN)
def _mentions_one(kind: type) -> bool:  # by itself: type checkers take no subclass of Module for a cache's key
    found = [
        function
        for base in kind.__mro__
        if not base.__module__.startswith("torch.")
        for member in vars(base).values()
        if isinstance(function := getattr(member, "__func__", member), FunctionType)
    ]
    known: set[FunctionType] = set()
    for _ in range(_DEEPEST):
        mentioned = [value for function in found for value in _mentioned(function)]
        if any(isinstance(value, type) and issubclass(value, Function) for value in mentioned):
            return True
        known.update(found)
        found = [value for value in mentioned if isinstance(value, FunctionType) and _is_a_users(value)]
        found = [function for function in dict.fromkeys(found) if function not in known]
    return False


def _mentioned(function: FunctionType) -> Iterator[Any]:
    """Yield the objects that a function names: globals, variables around it, and attributes of modules."""
    names = function.__code__.co_names
    for value in [function.__globals__.get(name) for name in names] + _enclosed(function):
        of_module = [vars(value).get(name) for name in names] if isinstance(value, ModuleType) else []
        for each in (value, *of_module):
            yield each.__self__ if isinstance(each, MethodType) else each  # `Function.apply` under another name


def _enclosed(function: FunctionType) -> list[Any]:
    values = []
    for cell in function.__closure__ or ():
        with suppress(ValueError):  # not assigned yet
            values.append(cell.cell_contents)
    return values


def _is_a_users(function: FunctionType) -> bool:
    return not (function.__module__ or "").startswith("torch.")
