"""Whether code only computes from its arguments: then one call gives what the calls of all members would."""

import builtins
import dis
import types
from collections.abc import Iterator
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size)
_PACKAGES = {"torch", "torchmetrics", "math", "operator", "typing"}
_BUILTINS = {
    *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "getattr", "hasattr", "int", "isinstance"),
    *("issubclass", "len", "list", "map", "max", "min", "range", "repr", "reversed", "round", "set", "slice", "sorted"),
    *("str", "sum", "super", "tuple", "type", "zip", "ValueError", "TypeError", "RuntimeError", "NotImplementedError"),
}
_REFUSED = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "STORE_DEREF"}
_REFUSED_NAMES = {
    *("manual_seed", "seed", "random", "set_rng_state", "save", "backends", "func", "functorch", "vmap", "__dict__"),
}


def is_plain(value: Any) -> bool:
    """Whether a value can't be changed, and is compared by `==`."""
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | frozenset) and all(map(is_plain, value)))


def is_pure(function: Any) -> bool:
    """Whether a function in Python changes nothing but its arguments, and reads nothing else that may change.

    It may call torch and torchmetrics, other such functions, and methods of its arguments. What these are is for the
    caller to see to.
    """
    return _is_pure(function, set())


def values_read(function: types.FunctionType) -> list[Any]:
    """Return the plain values outside of its arguments that a pure function, or one that it calls, reads now."""
    found: list[Any] = []
    _collect(function, found, set())
    return found


def reads_argument(function: types.FunctionType, place: int) -> bool:
    """Whether the code of a function reads an argument, or may."""
    code = function.__code__
    if place >= code.co_argcount:
        return True
    name = code.co_varnames[place]
    reads = (step for step in dis.get_instructions(code) if "LOAD" in step.opname)
    return name in code.co_cellvars or any(
        name == step.argval or (isinstance(step.argval, tuple) and name in step.argval) for step in reads
    )


def _collect(function: types.FunctionType, found: list[Any], seen: set[types.CodeType]) -> None:
    if function.__code__ in seen:
        return
    seen.add(function.__code__)
    for value in _outside(function):
        if is_plain(value):
            found.append((type(value), value))
        elif isinstance(value, types.FunctionType) and value.__module__.partition(".")[0] not in _PACKAGES:
            found.append(value)
            _collect(value, found, seen)


def _is_pure(function: Any, seen: set[types.CodeType]) -> bool:
    if not isinstance(function, types.FunctionType):
        return False
    code = function.__code__
    if code in seen:
        return True
    seen.add(code)
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return all(map(is_plain, defaults)) and all(
        _is_allowed(value, seen) for value in _outside(function)
    ) and all(map(_is_code_allowed, _codes(code)))  # fmt: skip


def _is_allowed(value: Any, seen: set[types.CodeType]) -> bool:
    """Whether code may read a value that is outside of it."""
    if is_plain(value):
        return True
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in _PACKAGES
    home = getattr(value, "__module__", None)
    if isinstance(value, type | types.BuiltinFunctionType | types.FunctionType) and isinstance(home, str):
        if home == "builtins":
            return value.__name__ in _BUILTINS
        if home.partition(".")[0] in _PACKAGES or home == "_operator":
            return not home.startswith(("torch._functorch", "torch.func"))
    return _is_pure(value, seen)


def _outside(function: types.FunctionType) -> Iterator[Any]:
    """Give the values of global names and closures that a function's code reads, and something impure if unknown."""
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name, cell in cells.items():
        if name != "__class__":  # of super()
            try:
                yield cell.cell_contents
            except ValueError:
                yield object()
    for code in _codes(function.__code__):
        for step in dis.get_instructions(code):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                name = str(step.argval)
                yield function.__globals__.get(name, getattr(builtins, name, object()))


def _is_code_allowed(code: types.CodeType) -> bool:
    refused = any(step.opname in _REFUSED for step in dis.get_instructions(code))
    return not refused and _REFUSED_NAMES.isdisjoint(code.co_names)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Give a code and those of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
