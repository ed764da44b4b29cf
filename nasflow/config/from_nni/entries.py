"""The keys of an NNI config, each taken once, so that none is lost unnoticed."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from nasflow.clean_text import one_line
from nasflow.config.durations import Duration

_DURATION: TypeAdapter[float] = TypeAdapter(Duration)
_SIZES = {"b": 2**-30, "kb": 2**-20, "mb": 2**-10, "gb": 1.0, "tb": 2.0**10}  # GB; NNI's are powers of two
_MOST_NOTES = 200

T = TypeVar("T")


@dataclass(frozen=True)
class Note:
    """What is not translated, or is to be done by hand.

    Attributes:
        key: of the NNI config; its names may be of any text.
        text: a clause, without the value.
    """

    key: str
    text: str

    def __str__(self) -> str:
        return f"{one_line(self.key)}: {self.text}"


class Notes(list[Note]):
    """Notes in the order in which they were found."""

    def add(self, key: str, text: str) -> None:
        """Add a note, unless it is there or there are too many."""
        note = Note(key, text)
        if note not in self and len(self) < _MOST_NOTES:
            self.append(note)


class Entries:
    """A mapping of an NNI config. Keys match in camelCase and in snake_case; of several names the first that is there.

    A value of the wrong type is noted, and counts as missing.

    Args:
        values: the mapping; anything else counts as empty, and is noted.
        path: its place in the config.
    """

    def __init__(self, values: Any, path: str, notes: Notes):
        self.path, self.notes = path, notes
        self._left: dict[str, tuple[str, Any]] = {}
        if isinstance(values, Mapping):
            self._left = {plain(str(key)): (str(key), value) for key, value in values.items()}
        elif values is not None:
            notes.add(path, "should be a mapping; it is left out")

    def __bool__(self) -> bool:
        return bool(self._left)

    def copies(self, count: int) -> list["Entries"]:
        """Return so many mappings with what is left of this one, for several to take the same from."""
        found = [Entries(None, self.path, self.notes) for _ in range(count)]
        for each in found:
            each._left = dict(self._left)
        return found

    def take_as(self, copies: Iterable["Entries"]) -> None:
        """Count as taken what was taken of any of these copies."""
        for each in copies:
            self._left = {name: entry for name, entry in self._left.items() if name in each._left}

    def has(self, *names: str) -> bool:
        """Whether one of the names is there, and not taken."""
        return any(plain(name) in self._left for name in names)

    def key(self, *names: str) -> str:
        """Return the place of the first name that is there, or of the first."""
        written = next((self._left[plain(name)][0] for name in names if plain(name) in self._left), names[0])
        return f"{self.path}.{written}" if self.path else written

    def take(self, *names: str) -> Any:
        """Return a value of any type; None if it is missing."""
        for name in names:
            if plain(name) in self._left:
                return self._left.pop(plain(name))[1]
        return None

    def text(self, *names: str) -> str | None:
        """Return a text; a number as text."""
        return self._typed(names, (str, int, float), "a text", str)

    def number(self, *names: str) -> float | None:
        """Return a number."""
        return self._typed(names, (int, float), "a number", float)

    def count(self, *names: str) -> int | None:
        """Return a whole number, 0 or more."""
        return self._typed(names, (int,), "a whole number", _counted)

    def flag(self, *names: str) -> bool | None:
        """Return true or false."""
        key, value = self.key(*names), self.take(*names)
        if value is not None and not isinstance(value, bool):
            self.notes.add(key, "should be true or false; it is left out")
        return value if isinstance(value, bool) else None

    def seconds(self, *names: str) -> float | None:
        """Return a duration: seconds, or a text such as `1h`."""
        key, value = self.key(*names), self.take(*names)
        try:
            return None if value is None else _DURATION.validate_python(value)
        except ValidationError:
            self.notes.add(key, "should be a duration such as 30m, 12h or 7d; it is left out")
            return None

    def gigabytes(self, *names: str, unit: str = "mb") -> float | None:
        """Return a size in GB, of a number in `unit` or of a text such as `8gb`."""
        key, value = self.key(*names), self.text(*names)
        if value is None:
            return None
        found = re.fullmatch(r"(\d{1,9}(?:\.\d{1,9})?)\s*([kmgt]?b)?", value.strip().lower())
        if found is None:
            self.notes.add(key, "should be a size such as 8gb; it is left out")
            return None
        return round(float(found[1]) * _SIZES[found[2] or unit], 3)

    def indices(self, *names: str) -> list[int] | None:
        """Return positions of GPUs, given as a number, a list, or a text such as `0,1`."""
        key, value = self.key(*names), self.take(*names)
        listed = value.split(",") if isinstance(value, str) else value if isinstance(value, list) else [value]
        if value is None or value == "":
            return None
        texts = [str(item).strip() for item in listed]
        if all(re.fullmatch(r"\d{1,4}", text) for text in texts):
            return [int(text) for text in texts]
        self.notes.add(key, "should be positions of GPUs such as [0, 1]; it is left out")
        return None

    def section(self, *names: str) -> "Entries":
        """Return a mapping within this one; an empty one if it is missing."""
        key = self.key(*names)
        return Entries(self.take(*names), key, self.notes)

    def sections(self, *names: str) -> list["Entries"]:
        """Return the mappings of a list, or a single one given without a list."""
        key, value = self.key(*names), self.take(*names)
        if value is None:
            return []
        if not isinstance(value, list):
            return [Entries(value, key, self.notes)]
        return [Entries(item, f"{key}[{index}]", self.notes) for index, item in enumerate(value)]

    def secret(self, variable: str, *names: str) -> dict[str, str] | None:
        """Return a reference to use instead of a secret, without reading its value; None if it is missing."""
        if not self.has(*names):
            return None
        key = self.key(*names)
        self.take(*names)
        self.notes.add(key, f"a secret, which is not printed; set the environment variable {variable} to it")
        return {"env": variable}

    def drop(self, text: str, *names: str) -> None:
        """Leave keys out, and note for each that is there why, or what to do instead."""
        for name in names:
            if self.has(name):
                self.notes.add(self.key(name), text)
                self.take(name)

    def rest(self) -> None:
        """Note all keys that were not taken."""
        for name in list(self._left):
            self.notes.add(
                self.key(name), "there is nothing of the kind in nasflow, or it is no key of NNI's; left out"
            )
            self.take(name)

    def _typed(
        self, names: tuple[str, ...], types: tuple[type, ...], what: str, make: Callable[[Any], T | None]
    ) -> T | None:
        key, value = self.key(*names), self.take(*names)
        right = isinstance(value, types) and not isinstance(value, bool)
        made = make(value) if right else None
        if value is not None and made is None:
            self.notes.add(key, f"should be {what}; it is left out")
        return made


def _counted(value: int) -> int | None:
    return value if 0 <= value < 2**31 else None


def plain(name: str) -> str:
    """Return a key without the difference between camelCase and snake_case."""
    return name.replace("_", "").lower()
