"""`pick`: the callable that a space asks for every choice. Each subclass has its own source of answers."""

import builtins
import random
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar, overload

from nasflow.errors import SpaceError
from nasflow.space.architecture import Architecture
from nasflow.space.domain import Categorical, Domain, FloatDomain, IntDomain, SubsetDomain, is_scalar

T = TypeVar("T")


class Pick(ABC):
    """Answers a space's questions and remembers the answers: the same label again is the same choice.

    Subclasses implement `_choose`. Every method raises SpaceError, naming the label, for a domain that can't be used
    and for a label that was asked before with another domain.
    """

    def __init__(self) -> None:
        self._choices: dict[str, Any] = {}
        self._domains: dict[str, Domain] = {}
        self._scopes: list[str] = []

    @abstractmethod
    def _choose(self, label: str, domain: Domain) -> Any:
        """Return the value of a label that was not asked before; `label` includes scopes."""

    @overload
    def __call__(self, label: str, options: Mapping[Any, Any]) -> Any: ...
    @overload
    def __call__(self, label: str, options: Sequence[T]) -> T: ...
    def __call__(self, label: str, options: Mapping[Any, Any] | Sequence[Any]) -> Any:
        """Choose one of `options`.

        A mapping's key is what the architecture stores; a chosen factory (anything callable but a ready module) is
        called without arguments, and again when the label is asked again. Of a sequence of JSON scalars the value
        itself is stored, of any other sequence the position.
        """
        if isinstance(options, Mapping):
            keys = tuple(options)
            chosen = options[keys[self._index(label, keys)]]
            return chosen() if callable(chosen) and not _is_module(chosen) else chosen
        return options[self._index(label, _stored(self._full(label), options))]

    def int(
        self, label: str, low: builtins.int, high: builtins.int, step: builtins.int = 1, log: bool = False
    ) -> builtins.int:
        """Choose a whole number from `low` up to `high`, both included; `log` (without `step`) favors small ones."""
        return int(self.domain(label, IntDomain(low, high, step, log)))

    def float(self, label: str, low: builtins.float, high: builtins.float, log: bool = False) -> builtins.float:
        """Choose a number in `[low, high]`, uniform in its logarithm with `log`."""
        return float(self.domain(label, FloatDomain(_as_float(low), _as_float(high), log)))

    def subset(self, label: str, options: Sequence[T], k: builtins.int | None) -> list[T]:
        """Choose `k` of `options`, in their order; any number of them, including none and all, with `k=None`."""
        stored = _stored(self._full(label), options)
        places = Categorical(stored)
        return [options[places.index(value)] for value in self.domain(label, SubsetDomain(stored, k))]

    def domain(self, label: str, domain: Domain) -> Any:
        """Choose a value of `domain`. All other methods call this one."""
        label = self._full(label)
        if label in self._domains:
            if self._domains[label] != domain:
                raise SpaceError(
                    f"label '{label}' was first {self._domains[label].describe()}, and is now {domain.describe()}: "
                    "use another label, or a scope"
                )
            return self._choices[label]
        if flaw := domain.flaw():
            raise SpaceError(f"label '{label}': {flaw}")
        value = self._choose(label, domain)
        if not domain.contains(value):
            raise SpaceError(f"label '{label}': {value!r} does not fit, it should be {domain.describe()}")
        self._choices[label], self._domains[label] = value, domain
        return value

    @contextmanager
    def scope(self, prefix: str) -> Iterator[None]:
        """Within this block, label `x` is `prefix/x`. Scopes nest."""
        self._scopes.append(_checked(prefix))
        try:
            yield
        finally:
            self._scopes.pop()

    @property
    def architecture(self) -> Architecture:
        """The choices so far."""
        return Architecture(self._choices)

    @property
    def domains(self) -> dict[str, Domain]:
        """The domain of every label asked so far, in the order they were asked."""
        return dict(self._domains)

    def _full(self, label: str) -> str:
        return "/".join([*self._scopes, _checked(label)])

    def _index(self, label: str, stored: tuple[Any, ...]) -> builtins.int:
        domain = Categorical(stored)
        return domain.index(self.domain(label, domain))


class FixedPick(Pick):
    """Answers from an architecture, to rebuild its model.

    Raises SpaceError, naming the label, when the architecture lacks a label or has a value that does not fit.
    """

    def __init__(self, architecture: Mapping[str, Any]):
        super().__init__()
        self._given = architecture

    def _choose(self, label: str, domain: Domain) -> Any:
        if label not in self._given:
            raise SpaceError(f"label '{label}' is missing from the architecture: it should be {domain.describe()}")
        return self._given[label]

    @property
    def unused(self) -> list[str]:
        """The architecture's labels that were not asked."""
        return [label for label in self._given if label not in self._choices]


class RandomPick(Pick):
    """Answers with the value `given` for a label where it fits, else at random."""

    def __init__(self, rng: random.Random, given: Mapping[str, Any] | None = None):
        super().__init__()
        self._rng = rng
        self._given = given or {}

    def _choose(self, label: str, domain: Domain) -> Any:
        if label in self._given and domain.contains(self._given[label]):
            return self._given[label]
        return domain.sample(self._rng)


def _checked(label: object) -> str:
    if not isinstance(label, str) or not label:
        raise SpaceError(f"a label must be a string with at least one character, not {label!r}")
    return label


def _stored(label: str, options: Sequence[Any]) -> tuple[Any, ...]:
    """Return each option's value in an architecture: itself if all are JSON scalars, else its position."""
    if isinstance(options, str | bytes) or not isinstance(options, Sequence):
        raise SpaceError(f"label '{label}': options should be a list, a tuple or a dict, not {options!r}")
    return tuple(options) if all(map(is_scalar, options)) else tuple(range(len(options)))


def _as_float(number: Any) -> Any:
    """Return an integer as a float; other values are left for the domain to refuse."""
    return float(number) if isinstance(number, int) and not isinstance(number, bool) else number


def _is_module(value: object) -> bool:
    torch = sys.modules.get("torch")  # while it is not imported there can be no module
    return torch is not None and isinstance(value, torch.nn.Module)
