"""The possible values of a label: four kinds of domain, each a plain immutable description. Imports no torch.

Values are distinguished as in JSON: `1`, `1.0` and `true` are three different values.
"""

import json
import math
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

from nasflow.errors import SpaceError

Scalar = str | int | float | bool | None


def is_scalar(value: object) -> bool:
    """Whether `value` is a JSON scalar: a string, a finite number, true, false or null."""
    return value is None or isinstance(value, str | int) or (isinstance(value, float) and math.isfinite(value))


class Domain(ABC):
    """A set of values in a fixed order. A float domain is infinite unless `float_steps` gives its number of values."""

    @abstractmethod
    def flaw(self) -> str | None:
        """Return in words what makes this domain unusable, or None. The caller raises SpaceError with the label."""

    @abstractmethod
    def contains(self, value: object) -> bool:
        """Whether `value` is in this domain, with the right type."""

    @abstractmethod
    def sample(self, rng: random.Random) -> Any:
        """Return a random value: uniform, or uniform in its logarithm for a `log` domain."""

    @abstractmethod
    def size(self, float_steps: int | None = None) -> int | None:
        """Return the number of values; None if infinite."""

    @abstractmethod
    def at(self, index: int, float_steps: int | None = None) -> Any:
        """Return the value at `index` of a finite domain."""

    @abstractmethod
    def index(self, value: Any, float_steps: int | None = None) -> int:
        """Return the index of `value`. Raises ValueError if it is not among the values of a finite domain."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the domain in words, for messages."""

    def values(self, float_steps: int | None = None) -> Iterator[Any]:
        """Yield every value in order.

        Raises:
            SpaceError: there are infinitely many.
        """
        size = self.size(float_steps)
        if size is None:
            raise SpaceError(f"{self.describe()} has no last value: give float_steps to cut it into that many")
        return (self.at(index, float_steps) for index in range(size))

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and repr(self) == repr(other)  # == does not distinguish 1, 1.0 and True

    def __hash__(self) -> int:
        return hash(repr(self))


@dataclass(frozen=True, eq=False)
class Categorical(Domain):
    """One of `options`, which are JSON scalars."""

    options: tuple[Scalar, ...]

    @cached_property
    def _places(self) -> dict[str, int]:
        return {json.dumps(option): place for place, option in enumerate(self.options)}

    def flaw(self) -> str | None:
        """See `Domain.flaw`."""
        return _options_flaw(self.options) or ("it has an option twice" if self._has_duplicate() else None)

    def contains(self, value: object) -> bool:
        """See `Domain.contains`."""
        return is_scalar(value) and json.dumps(value) in self._places

    def sample(self, rng: random.Random) -> Scalar:
        """See `Domain.sample`."""
        return self.options[rng.randrange(len(self.options))]

    def size(self, float_steps: int | None = None) -> int:
        """See `Domain.size`."""
        return len(self.options)

    def at(self, index: int, float_steps: int | None = None) -> Scalar:
        """See `Domain.at`."""
        return self.options[index]

    def index(self, value: Scalar, float_steps: int | None = None) -> int:
        """See `Domain.index`."""
        if not self.contains(value):
            raise ValueError(f"{value!r} is not {self.describe()}")
        return self._places[json.dumps(value)]

    def describe(self) -> str:
        """See `Domain.describe`."""
        return f"one of {_listed(self.options)}"

    def _has_duplicate(self) -> bool:
        return len(self._places) < len(self.options)


@dataclass(frozen=True, eq=False)
class IntDomain(Domain):
    """A whole number from `low` up to `high`, both included, in steps; `log` (with step 1 only) favors small ones."""

    low: int
    high: int
    step: int = 1
    log: bool = False

    def flaw(self) -> str | None:
        """See `Domain.flaw`."""
        if not all(type(number) is int for number in (self.low, self.high, self.step)):
            return "low, high and step must be whole numbers"
        if self.step < 1:
            return f"step must be at least 1, not {self.step}"
        if self.log and self.step != 1:
            return "log and step can't be combined"
        return _range_flaw(self.low, self.high, self.log)

    def contains(self, value: object) -> bool:
        """See `Domain.contains`."""
        return type(value) is int and self.low <= value <= self.high and (value - self.low) % self.step == 0

    def sample(self, rng: random.Random) -> int:
        """See `Domain.sample`."""
        if not self.log:
            return self.at(rng.randrange(self.size()))
        value = round(math.exp(rng.uniform(math.log(self.low - 0.5), math.log(self.high + 0.5))))
        return min(max(value, self.low), self.high)

    def size(self, float_steps: int | None = None) -> int:
        """See `Domain.size`."""
        return (self.high - self.low) // self.step + 1

    def at(self, index: int, float_steps: int | None = None) -> int:
        """See `Domain.at`."""
        return self.low + index * self.step

    def index(self, value: int, float_steps: int | None = None) -> int:
        """See `Domain.index`."""
        if not self.contains(value):
            raise ValueError(f"{value!r} is not {self.describe()}")
        return (value - self.low) // self.step

    def describe(self) -> str:
        """See `Domain.describe`."""
        steps = f" in steps of {self.step}" if self.step > 1 else ""
        return f"a whole number in [{self.low}, {self.high}]{steps}{' (log)' if self.log else ''}"


@dataclass(frozen=True, eq=False)
class FloatDomain(Domain):
    """A number in `[low, high]`, uniform in its logarithm with `log`. A whole number is given as a float: `1.0`."""

    low: float
    high: float
    log: bool = False

    def flaw(self) -> str | None:
        """See `Domain.flaw`."""
        if not all(type(number) is float and math.isfinite(number) for number in (self.low, self.high)):
            return "low and high must be finite floats"
        return _range_flaw(self.low, self.high, self.log)

    def contains(self, value: object) -> bool:
        """See `Domain.contains`."""
        return isinstance(value, float) and self.low <= value <= self.high

    def sample(self, rng: random.Random) -> float:
        """See `Domain.sample`."""
        return _between(self, rng.random())

    def size(self, float_steps: int | None = None) -> int | None:
        """See `Domain.size`."""
        return None if float_steps is None and self.low < self.high else len(self._grid(float_steps))

    def at(self, index: int, float_steps: int | None = None) -> float:
        """See `Domain.at`."""
        return self._grid(float_steps)[index]

    def index(self, value: float, float_steps: int | None = None) -> int:
        """See `Domain.index`."""
        return self._grid(float_steps).index(value)

    def _grid(self, float_steps: int | None) -> Sequence[float]:
        return (self.low,) if self.low == self.high else _float_grid(self, float_steps or 0)

    def describe(self) -> str:
        """See `Domain.describe`."""
        return f"a number in [{self.low}, {self.high}]{' (log)' if self.log else ''}"


@dataclass(frozen=True, eq=False)
class SubsetDomain(Domain):
    """`k` of `options`, as a list in the options' order. With `k=None` any number of them, none and all included."""

    options: tuple[Scalar, ...]
    k: int | None

    @cached_property
    def _every(self) -> Categorical:
        return Categorical(self.options)

    def flaw(self) -> str | None:
        """See `Domain.flaw`."""
        if flaw := self._every.flaw():
            return flaw
        if self.k is not None and (type(self.k) is not int or not 1 <= self.k <= len(self.options)):
            return f"k must be a whole number from 1 to {len(self.options)}, or None, not {self.k!r}"
        return None

    def contains(self, value: object) -> bool:
        """See `Domain.contains`."""
        if not isinstance(value, list) or not all(self._every.contains(item) for item in value):
            return False
        places = [self._every.index(item) for item in value]
        return self.k in (None, len(places)) and all(a < b for a, b in pairwise(places))

    def sample(self, rng: random.Random) -> list[Scalar]:
        """See `Domain.sample`."""
        return self.at(rng.randrange(self.size()))

    def size(self, float_steps: int | None = None) -> int:
        """See `Domain.size`."""
        return 2 ** len(self.options) if self.k is None else math.comb(len(self.options), self.k)

    def at(self, index: int, float_steps: int | None = None) -> list[Scalar]:
        """See `Domain.at`: in binary order with `k=None`, else in lexicographic order."""
        if self.k is None:
            return [option for place, option in enumerate(self.options) if index >> place & 1]
        chosen: list[Scalar] = []
        for place, option in enumerate(self.options):
            with_it = self._completions(self.k, place, len(chosen))
            if index < with_it:
                chosen.append(option)
            else:
                index -= with_it
        return chosen

    def index(self, value: Sequence[Scalar], float_steps: int | None = None) -> int:
        """See `Domain.index`."""
        if not self.contains(value):
            raise ValueError(f"{value!r} is not {self.describe()}")
        places = {self._every.index(item) for item in value}
        if self.k is None:
            return sum(1 << place for place in places)
        taken, index = 0, 0
        for place in range(len(self.options)):
            if place in places:
                taken += 1
            else:
                index += self._completions(self.k, place, taken)
        return index

    def describe(self) -> str:
        """See `Domain.describe`."""
        return f"{'any' if self.k is None else self.k} of {_listed(self.options)}, listed in this order"

    def _completions(self, k: int, place: int, taken: int) -> int:
        """Return how many subsets of `k` include the option at `place` after `taken` options before it."""
        return math.comb(len(self.options) - place - 1, k - taken - 1) if taken < k else 0


def _range_flaw(low: float, high: float, log: bool) -> str | None:
    if low > high:
        return f"low ({low}) is above high ({high})"
    if log and low <= 0:
        return f"log needs low above 0, not {low}"
    return None


def _options_flaw(options: Sequence[object]) -> str | None:
    if not options:
        return "it has no options"
    odd = [option for option in options if not is_scalar(option)]
    return f"option {odd[0]!r} is not a string, a finite number, true, false or null" if odd else None


def _listed(options: Sequence[Scalar], most: int = 12) -> str:
    shown = ", ".join(repr(option) for option in options[:most])
    return f"{shown}, ... ({len(options)} in all)" if len(options) > most else shown


def _between(domain: FloatDomain, share: float) -> float:
    """Return the number at `share` (0 to 1) of the way from low to high."""
    if domain.log:
        low, high = math.log(domain.low), math.log(domain.high)
        value = math.exp(low + (high - low) * share)
    else:
        value = domain.low * (1 - share) + domain.high * share
    return min(max(value, domain.low), domain.high)


@lru_cache(maxsize=1024)
def _float_grid(domain: FloatDomain, steps: int) -> tuple[float, ...]:
    """Return `steps` numbers from low to high, ends included, without duplicates; the middle alone for one step."""
    if steps < 1:
        raise ValueError("float_steps must be at least 1")
    if steps == 1:
        return (_between(domain, 0.5),)
    inner = [_between(domain, step / (steps - 1)) for step in range(1, steps - 1)]
    return tuple(dict.fromkeys([domain.low, *inner, domain.high]))
