"""The JSON text of a tree, in which other code decides how everything is written that JSON does not have."""

import functools
import math
from collections.abc import Callable, Iterable
from json.encoder import encode_basestring_ascii
from typing import Any

import torch

Place = Callable[[Any], str]
"""Returns the text of a tensor, or of another object that is none of JSON's; raises MisfitError for what can't be."""

quoted: Callable[[str], str] = encode_basestring_ascii


class MisfitError(Exception):
    """A value that a checkpoint can't hold, and the keys that lead to it, the innermost first."""

    def __init__(self, what: str):
        super().__init__(what)
        self.keys: list[Any] = []

    @property
    def path(self) -> str:
        """The keys, the outermost first."""
        return "".join(f"/{key}" for key in reversed(self.keys)) or "/"


def text_of(tree: Any, place: Place) -> str:
    """Return the JSON text of a tree of dicts, lists, tuples, JSON scalars, and what `place` takes.

    It is written directly: building lists and dicts for an encoder takes a tenth longer.

    Raises:
        MisfitError: the tree contains something else.
    """
    if (write := _WRITERS.get(type(tree))) is not None:
        return write(tree)
    if isinstance(tree, dict):
        return _dict(tree, place)
    if isinstance(tree, list):
        return f"[{','.join(_items(tree, place))}]"
    if isinstance(tree, tuple):
        return f'{{"$tuple":[{",".join(_items(tree, place))}]}}'
    for kind, write in _WRITERS.items():
        if isinstance(tree, kind):
            return write(tree)
    return place(tree)


def _dict(tree: dict[Any, Any], place: Place) -> str:
    key = None
    try:
        if are_plain(tuple(tree)):
            pairs = [
                # most values have a writer, so looking it up here saves many calls
                f"{quoted(key := own)}:{write(item) if (write := _WRITERS.get(type(item))) else text_of(item, place)}"
                for own, item in tree.items()
            ]
            return f"{{{','.join(pairs)}}}"
        pairs = [f"[{text_of((key := own), _refuse)},{text_of(value, place)}]" for own, value in tree.items()]
        return f'{{"$dict":[{",".join(pairs)}]}}'
    except MisfitError as misfit:
        misfit.keys.append(key)
        raise


def _items(items: Iterable[Any], place: Place) -> list[str]:
    packed: list[str] = []
    try:
        for item in items:
            packed.append(write(item) if (write := _WRITERS.get(type(item))) else text_of(item, place))
    except MisfitError as misfit:
        misfit.keys.append(len(packed))
        raise
    return packed


def _float(number: float) -> str:
    text = float.__repr__(number)
    return text if math.isfinite(number) else f'{{"$float":"{text}"}}'


_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: {False: "false", True: "true"}.__getitem__,
    type(None): {None: "null"}.__getitem__,
    float: _float,
    int: int.__repr__,
    str: quoted,
}
"""bool comes before int, because it is a subclass of int."""


@functools.lru_cache(maxsize=4_096)
def are_plain(keys: tuple[Any, ...]) -> bool:
    """Whether the keys can be JSON keys, and none of them has a special meaning here."""
    return all(type(key) is str and key[:1] != "$" for key in keys)


def _refuse(key: Any) -> str:
    raise MisfitError("dict with a tensor in a key" if isinstance(key, torch.Tensor) else type(key).__name__)
