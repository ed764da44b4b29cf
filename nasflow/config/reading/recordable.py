"""What a config may contain: it has to be recorded as JSON, shown and sent, so its size and its values have limits."""

import math
from collections.abc import Iterator
from datetime import date, time
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError, to_jsonable_python

MOST_CHARACTERS = 1_000_000
"""Of a config's text, and of its values if each is counted wherever it occurs."""
MOST_LEVELS = 50
"""Of lists and mappings in each other."""
TOO_LONG = f"it has more than {MOST_CHARACTERS:,} characters, counted wherever an alias repeats them; make it shorter"
TOO_DEEP = f"it is nested more than {MOST_LEVELS} deep; make it flatter"

_Path = tuple[str | int, ...]


def refuse_unrecordable(values: Any) -> None:
    """Check the values of a config, before they are validated. Nothing is copied or expanded.

    Raises:
        ValidationError: it says where there is a value that can't be recorded as JSON, or that there is too much.
    """
    waiting: list[tuple[_Path, Any]] = [((), values)]
    characters = 0
    while waiting:
        path, value = waiting.pop()
        characters += 1 + (len(value) if isinstance(value, str) else 0)
        if characters > MOST_CHARACTERS:
            raise _refused((), TOO_LONG)
        if len(path) > MOST_LEVELS:
            raise _refused(path[:1], TOO_DEEP)
        if flaw := _flaw(value):
            raise _refused(path, flaw)
        waiting += ((((*path, key)), item) for key, item in _items(value))


def as_recorded(values: Any) -> Any:
    """Return checked values as they are read from their JSON: dates and paths as text, tuples as lists."""
    match values:
        case dict():
            return {key: as_recorded(item) for key, item in values.items()}
        case list() | tuple():
            return [as_recorded(item) for item in values]
        case date() | time() | PurePath():
            return to_jsonable_python(values)
    return values


def _items(value: Any) -> Iterator[tuple[str | int, Any]]:
    match value:
        case dict():
            yield from ((key, part) for key, item in value.items() for part in (key, item))
        case list() | tuple():
            yield from enumerate(value)


def _flaw(value: Any) -> str | None:
    """Return why a value can't be recorded, or None."""
    match value:
        case str():
            return _flaw_of_text(value)
        case int() if value.bit_length() > 64:
            number = str(value) if value.bit_length() < 200 else "a number"
            return f"{number} has more than 64 bits; use a smaller one"
        case float() if not math.isfinite(value):
            return f"{value} is no number that can be recorded; use a finite one"
        case dict():
            odd = next((key for key in value if not isinstance(key, str)), None)
            return None if odd is None else f"the key {odd!r:.40} should be text; write it in quotes"
        case bytes() | set() | frozenset():
            return f"a {type(value).__name__} can't be recorded; use text, numbers, lists and mappings"
    return None


def _flaw_of_text(text: str) -> str | None:
    if "\0" in text:
        return "it has a NUL character; remove it"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"it has a character that is no text ({ascii(text[error.start])[1:-1]}); remove it"
    return None


def _refused(path: _Path, message: str) -> ValidationError:
    problem = InitErrorDetails(
        type=PydanticCustomError("unrecordable", "{flaw}", {"flaw": message}), loc=path, input=None
    )
    return ValidationError.from_exception_data("config", [problem])
