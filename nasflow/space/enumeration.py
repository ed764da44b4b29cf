"""Enumerating a conditional space in order, and probing its size: picks that choose by position."""

import random
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from nasflow.errors import SpaceError
from nasflow.space.domain import Domain
from nasflow.space.pick import Pick


class EndlessDomain(SpaceError):  # noqa: N818  # a case of SpaceError, not an error of its own kind
    """A domain with infinitely many values where all were to be enumerated."""


class Step(NamedTuple):
    """One choice of a run: the label, the position of its value, and how many values there are."""

    label: str
    position: int
    size: int


class OdometerPick(Pick):
    """Takes the choices of `prefix`, then the first value everywhere, and records its steps.

    Raises:
        EndlessDomain: a float domain without `float_steps`; names the label.
        SpaceError: the program asks other labels than when the prefix was recorded.
    """

    def __init__(self, prefix: Sequence[Step], float_steps: int | None):
        super().__init__()
        self._prefix = prefix
        self._float_steps = float_steps
        self.steps: list[Step] = []

    def _choose(self, label: str, domain: Domain) -> Any:
        place = len(self.steps)
        step = self._prefix[place] if place < len(self._prefix) else Step(label, 0, 0)
        size = _size(label, domain, self._float_steps)
        if step.label != label or step.position >= size:
            raise SpaceError(
                f"label '{label}': the space asked '{step.label}' here before, with the same choices made; "
                "what it asks may depend on nothing but pick's answers"
            )
        self.steps.append(Step(label, step.position, size))
        return domain.at(step.position, self._float_steps)


class ProbePick(Pick):
    """Chooses uniformly among positions; `product` is the product of the sizes of the domains it met."""

    def __init__(self, rng: random.Random, float_steps: int | None):
        super().__init__()
        self._rng = rng
        self._float_steps = float_steps
        self.product = 1

    def _choose(self, label: str, domain: Domain) -> Any:
        size = _size(label, domain, self._float_steps)
        self.product *= size
        return domain.at(self._rng.randrange(size), self._float_steps)


def next_prefix(steps: Sequence[Step]) -> list[Step] | None:
    """Return the prefix of the run after the one that took `steps`, or None if that was the last."""
    for place in reversed(range(len(steps))):
        step = steps[place]
        if step.position + 1 < step.size:
            return [*steps[:place], step._replace(position=step.position + 1)]
    return None


def steps_to(domains: Mapping[str, Domain], architecture: Mapping[str, Any], float_steps: int | None) -> list[Step]:
    """Return the steps of an odometer to a valid `architecture`, given its labels' domains.

    Raises:
        EndlessDomain: as OdometerPick.
        SpaceError: a number is not among the `float_steps` values of its domain; names the label.
    """
    steps = []
    for label, domain in domains.items():
        size = _size(label, domain, float_steps)
        try:
            position = domain.index(architecture[label], float_steps)
        except ValueError:
            raise SpaceError(
                f"label '{label}': {architecture[label]!r} is not among the {size} values that {domain.describe()} "
                "is cut into"
            ) from None
        steps.append(Step(label, position, size))
    return steps


def _size(label: str, domain: Domain, float_steps: int | None) -> int:
    size = domain.size(float_steps)
    if size is None:
        raise EndlessDomain(
            f"label '{label}': {domain.describe()} has infinitely many values; give float_steps to visit some of them"
        )
    return size
