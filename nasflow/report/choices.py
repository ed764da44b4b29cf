"""The domain of each label that the trials of a study chose from, also as Optuna's distributions."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from nasflow.space.domain import Categorical, Domain, FloatDomain, IntDomain, SubsetDomain

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

    from nasflow.space.space import Space

Values = Mapping[str, Any]
"""An architecture: the chosen value of each label."""

_LOG_RATIO = 100  # floats with a largest value this many times the smallest are guessed to be on a log scale
_MANY = 12  # more different integers than this are guessed to be a range


def space_domains(space: "Space", architectures: Iterable[Values]) -> dict[str, Domain]:
    """Return the domain of each label in a space.

    Only architectures with a new label or value are explored. If the domain of a label depends on other choices, it
    becomes one with all values; without such a domain, the label is left out.

    Raises:
        UserError: the space can't be explored, or an architecture does not fit it.
    """
    known: dict[str, Domain | None] = {}
    for architecture in architectures:
        if all(label in known and _has(known[label], value) for label, value in architecture.items()):
            continue
        for label, domain in space.domains(architecture).items():
            known[label] = _union(known[label], domain) if label in known else domain
    return {label: domain for label, domain in known.items() if domain is not None}


def domains_of(architectures: Sequence[Values], known: Mapping[str, Domain]) -> dict[str, Domain]:
    """Return the domain of each label in the architectures: the known one, or one guessed from the values."""
    values: dict[str, list[Any]] = {}
    for architecture in architectures:
        for label, value in architecture.items():
            values.setdefault(label, []).append(value)
    return {
        label: known[label] if label in known and all(map(known[label].contains, chosen)) else _guessed(chosen)
        for label, chosen in values.items()
    }


class OptunaChoices:
    """Converts architectures to Optuna's parameters: one per label, or a boolean per option of a subset.

    Args:
        domains: the domains of all labels in the architectures.
    """

    def __init__(self, domains: Mapping[str, Domain]):
        self._domains = domains
        self._distributions = {label: _distributions(label, domain) for label, domain in domains.items()}

    def of(self, architecture: Values) -> "tuple[dict[str, Any], dict[str, BaseDistribution]]":
        """Return the parameters of an architecture, and their distributions."""
        params: dict[str, Any] = {}
        distributions: dict[str, BaseDistribution] = {}
        for label, value in architecture.items():
            params |= _params(label, self._domains[label], value)
            distributions |= self._distributions[label]
        return params, distributions

    def by_label(self, shares: Mapping[str, float]) -> dict[str, float]:
        """Add up shares of parameters by label, the largest first."""
        labels = {name: label for label, named in self._distributions.items() for name in named}
        found: dict[str, float] = dict.fromkeys((labels[name] for name in shares), 0.0)
        for name, share in shares.items():
            found[labels[name]] += share
        return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def _distributions(label: str, domain: Domain) -> "dict[str, BaseDistribution]":
    from optuna.distributions import (  # noqa: PLC0415 - slow
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    match domain:
        case Categorical(options):
            return {label: CategoricalDistribution([_scalar(option, options) for option in options])}
        case IntDomain(low, _, step, log):
            return {label: IntDistribution(low, domain.at(domain.size() - 1), log, step)}
        case FloatDomain(low, high, log):
            return {label: FloatDistribution(low, high, log)}
        case SubsetDomain(options, _):
            return {_option_name(label, option): CategoricalDistribution((False, True)) for option in options}
    raise TypeError(f"no Optuna distribution for {domain!r}")


def _params(label: str, domain: Domain, value: Any) -> dict[str, Any]:
    if isinstance(domain, SubsetDomain):
        chosen = {json.dumps(option) for option in (value if isinstance(value, list) else [value])}
        return {_option_name(label, option): json.dumps(option) in chosen for option in domain.options}
    return {label: _scalar(value, domain.options) if isinstance(domain, Categorical) else value}


def _option_name(label: str, option: Any) -> str:
    return f"{label}[{option}]"


def _scalar(option: Any, options: Sequence[Any]) -> Any:
    """An option that Optuna can distinguish: its JSON text if options are equal in Python (`1`, `1.0` and `true`)."""
    return option if len(set(options)) == len(options) else json.dumps(option)


def _has(domain: Domain | None, value: Any) -> bool:
    return domain is None or domain.contains(value)


def _union(one: Domain | None, other: Domain) -> Domain | None:
    """A domain with the values of both; None if no domain of their kind has them."""
    if one == other:
        return one
    match one, other:
        case Categorical(some), Categorical(more):
            return Categorical(_distinct([*some, *more]))
        case IntDomain(), IntDomain() if (one.step, one.log) == (other.step, other.log):
            aligned = (one.low - other.low) % one.step == 0
            return IntDomain(min(one.low, other.low), max(one.high, other.high), one.step, one.log) if aligned else None
        case FloatDomain(), FloatDomain() if one.log == other.log:
            return FloatDomain(min(one.low, other.low), max(one.high, other.high), one.log)
        case SubsetDomain(some, _), SubsetDomain(more, _):
            return SubsetDomain(_distinct([*some, *more]), None)
    return None


def _guessed(values: Sequence[Any]) -> Domain:
    if any(isinstance(value, list) for value in values):
        items = [item for value in values for item in (value if isinstance(value, list) else [value])]
        return SubsetDomain(_in_order(_distinct(items)), None)
    options = _in_order(_distinct(values))
    if all(type(value) is float for value in options):
        low, high = min(options), max(options)
        return FloatDomain(low, high, log=low > 0 and high / low >= _LOG_RATIO)
    if all(type(value) is int for value in options) and len(options) > _MANY:
        step = math.gcd(*(value - options[0] for value in options))
        return IntDomain(options[0], options[-1], step)
    return Categorical(options)


def _distinct(values: Iterable[Any]) -> tuple[Any, ...]:
    return tuple({json.dumps(value): value for value in values}.values())


def _in_order(options: tuple[Any, ...]) -> tuple[Any, ...]:
    """Sort numbers; keep the order of anything else."""
    numbers = all(type(option) in (int, float) for option in options)
    return tuple(sorted(options)) if numbers else options
