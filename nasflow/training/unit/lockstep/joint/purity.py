"""Whether code only computes from its arguments: then one call gives what the calls of all members would."""

import builtins
import dis
import types
from collections import Counter
from collections.abc import Hashable, Iterator
from functools import lru_cache
from typing import Any

import torch

_PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), torch.dtype, torch.device, torch.Size)
_PACKAGES = {"torch", "torchmetrics", "math", "operator", "typing"}
_BUILTINS = {
    *("abs", "all", "any", "bool", "dict", "divmod", "enumerate", "float", "getattr", "hasattr", "int", "isinstance"),
    *("issubclass", "len", "list", "map", "max", "min", "range", "repr", "reversed", "round", "set", "slice", "sorted"),
    *("str", "sum", "super", "tuple", "type", "zip", "ValueError", "TypeError", "RuntimeError", "NotImplementedError"),
}
_HOMES = {"builtins", "torch", "numpy"}  # of types of plain values; a user's own have methods of their own
_REFUSED = {"STORE_GLOBAL", "DELETE_GLOBAL", "STORE_ATTR", "DELETE_ATTR", "IMPORT_NAME", "STORE_DEREF"}
_REFUSED_NAMES = {
    *("manual_seed", "seed", "random", "set_rng_state", "save", "backends", "func", "functorch", "vmap", "__dict__"),
    *("__class__", "__wrapped__"),
}


def is_plain(value: Any) -> bool:
    """Whether a value can't be changed, and is compared by `==`."""
    if type(value).__module__.partition(".")[0] not in _HOMES:
        return False
    return isinstance(value, _PLAIN) or (isinstance(value, tuple | frozenset) and all(map(is_plain, value)))


def exact(value: Any) -> Hashable:
    """Return what differs for plain values that are equal and yet compute something else, such as 1 and 1.0."""
    if isinstance(value, tuple | frozenset):
        return type(value), type(value)(map(exact, value)) if type(value) in (tuple, frozenset) else value
    return type(value), repr(value) if isinstance(value, float | complex) else value  # of zeros the sign, and NaNs


def is_pure(function: Any, kind: type | None = None) -> bool:
    """Whether a function in Python changes nothing but its arguments, and reads nothing else that may change.

    It may call torch and torchmetrics, other such functions, and methods of its arguments. What these are is for the
    caller to see to.

    Args:
        kind: the class of the object that it is a method of, in which `super()` looks names up.
    """
    return _is_pure(function, kind, set())


def values_read(function: types.FunctionType, kind: type | None = None) -> list[Hashable]:
    """Return what a pure function, or one that it calls, reads now outside of its arguments."""
    found: list[Hashable] = []
    _collect(function, kind, found, set())
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


def _collect(
    function: types.FunctionType, kind: type | None, found: list[Hashable], seen: set[types.FunctionType]
) -> None:
    if function in seen:
        return
    seen.add(function)
    found.append(function.__code__)
    for value in _outside(function, kind):
        found.append(exact(value) if is_plain(value) else value)
        if isinstance(value, types.FunctionType) and not _is_of_packages(value):
            _collect(value, kind, found, seen)


def _is_pure(function: Any, kind: type | None, seen: set[types.FunctionType]) -> bool:
    if not isinstance(function, types.FunctionType):
        return False
    if function in seen:
        return True
    seen.add(function)
    is_allowed = all(_is_allowed(value, kind, seen) for value in _outside(function, kind))
    return is_allowed and all(map(_is_code_allowed, _codes(function.__code__)))


def _is_allowed(value: Any, kind: type | None, seen: set[types.FunctionType]) -> bool:
    """Whether code may read a value that is outside of it."""
    if is_plain(value):
        return True
    if isinstance(value, types.ModuleType):
        return value.__name__.partition(".")[0] in _PACKAGES
    if isinstance(value, types.FunctionType) and not _is_of_packages(value):
        return _is_pure(value, kind, seen)
    home = getattr(value, "__module__", None)
    if isinstance(value, type | types.BuiltinFunctionType | types.FunctionType) and isinstance(home, str):
        if home == "builtins":
            return value.__name__ in _BUILTINS
        if home.partition(".")[0] in _PACKAGES or home == "_operator":
            return not home.startswith(("torch._functorch", "torch.func"))
    return False


def _is_of_packages(function: Any) -> bool:
    """Whether a function, and all that it wraps, is where it says that it is: `functools.wraps` copies that."""
    while isinstance(function, types.FunctionType):
        homes = function.__module__ or "", str(function.__globals__.get("__name__", ""))
        if any(home.partition(".")[0] not in _PACKAGES for home in homes):
            return False
        function = vars(function).get("__wrapped__")
    return True


def _outside(function: types.FunctionType, kind: type | None) -> Iterator[Any]:
    """Give what a function's code may read beside its arguments, and something impure if that is unknown.

    It is its defaults and attributes, the values of global names and closures, and those of attributes of `super()`.
    """
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield from (value for name, value in vars(function).items() if name != "__wrapped__")
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    for name, cell in cells.items():
        try:
            value = cell.cell_contents
        except ValueError:
            yield object()
        else:
            if name != "__class__":
                yield value
            else:  # of super()
                yield from (_of_parents(value, kind, read) for read in _read_of_super(function.__code__))
    for name in _globals_read(function.__code__):
        yield function.__globals__.get(name, getattr(builtins, name, object()))


@lru_cache(maxsize=1000)
def _globals_read(code: types.CodeType) -> tuple[str, ...]:
    steps = (step for part in _codes(code) for step in dis.get_instructions(part))
    return tuple(dict.fromkeys(str(step.argval) for step in steps if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")))


@lru_cache(maxsize=1000)
def _read_of_super(code: types.CodeType) -> tuple[str, ...]:
    """Return the names of the attributes of `super()` that code reads; an empty one where they are unknown."""
    return tuple(_find_read_of_super(code))


def _find_read_of_super(code: types.CodeType) -> Iterator[str]:
    for part in _codes(code):
        steps = [step for step in dis.get_instructions(part) if step.opname not in ("PRECALL", "PUSH_NULL", "CACHE")]
        for index, step in enumerate(steps):
            if step.opname == "LOAD_GLOBAL" and step.argval == "super":
                after = steps[index + 1 : index + 4]
                if after[0].opname == "CALL" and after[0].arg == 0:
                    yield str(after[1].argval) if after[1].opname in ("LOAD_ATTR", "LOAD_METHOD") else ""
                else:  # a single instruction, since Python 3.12
                    yield str(after[-1].argval) if after[-1].opname.startswith("LOAD_SUPER_") else ""


def _of_parents(owner: type, kind: type | None, name: str) -> Any:
    """Return what a name is in the classes after `owner` in those of `kind`; something impure if that is unknown."""
    mro = kind.__mro__ if kind is not None else ()
    parents = mro[mro.index(owner) + 1 :] if owner in mro else ()
    found = next((vars(parent)[name] for parent in parents if name in vars(parent)), object())
    return found.__func__ if isinstance(found, staticmethod) else found


def _is_code_allowed(code: types.CodeType) -> bool:
    names = Counter(step.opname for step in dis.get_instructions(code))
    catches = names["PUSH_EXC_INFO"] > names["WITH_EXCEPT_START"]  # what is refused in a step could be caught
    return not catches and _REFUSED.isdisjoint(names) and _REFUSED_NAMES.isdisjoint(code.co_names)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    """Give a code and those of the functions and comprehensions in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _codes(constant)
