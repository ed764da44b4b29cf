"""A label's domain as Optuna's parameters: one, or several for a subset."""

from typing import Any

from optuna import Trial
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from nasflow.space.domain import Categorical, Domain, FloatDomain, IntDomain, SubsetDomain


def distributions(label: str, domain: Domain) -> dict[str, BaseDistribution]:
    """Return Optuna's parameters for a label.

    The domain is part of their names, because Optuna keeps the options of a name fixed over all trials, while a
    program may give a label other options after other choices.

    A subset of any size is one boolean per option. A subset of k options is one number per option, and the k largest
    are taken (random keys, Bean 1994).
    """
    name = f"{label} {domain!r}"
    match domain:
        case Categorical(options):
            return {name: CategoricalDistribution(tuple(range(len(options))))}
        case IntDomain(low, _, step, log):
            return {name: IntDistribution(low, domain.at(domain.size() - 1), log, step)}
        case FloatDomain(low, high, log):
            return {name: FloatDistribution(low, high, log)}
        case SubsetDomain(options, k):
            one = CategoricalDistribution((False, True)) if k is None else FloatDistribution(0.0, 1.0)
            return {f"{name} {place}": one for place in range(len(options))}
    raise TypeError(f"no Optuna distribution for {domain!r}")


def decode(domain: Domain, params: list[Any]) -> Any:
    """Return the value that Optuna's parameters, in the order of `distributions`, represent."""
    if isinstance(domain, Categorical):
        return domain.at(params[0])
    if not isinstance(domain, SubsetDomain):
        return params[0]
    if domain.k is None:
        return [option for option, taken in zip(domain.options, params, strict=True) if taken]
    largest = sorted(range(len(params)), key=lambda place: -params[place])[: domain.k]
    return [domain.options[place] for place in sorted(largest)]


def encode(domain: Domain, value: Any) -> list[Any]:
    """Return the parameters that `decode` turns into `value`."""
    if isinstance(domain, Categorical):
        return [domain.index(value)]
    if not isinstance(domain, SubsetDomain):
        return [value]
    every = Categorical(domain.options)
    taken = {every.index(option) for option in value}
    marks = [place in taken for place in range(len(domain.options))]
    return marks if domain.k is None else [float(mark) for mark in marks]


def suggest(trial: Trial, label: str, domain: Domain) -> Any:
    """Return a value of `domain` that Optuna suggests."""
    params: list[Any] = []
    for name, distribution in distributions(label, domain).items():
        match distribution:
            case FloatDistribution():
                params.append(trial.suggest_float(name, distribution.low, distribution.high, log=distribution.log))
            case IntDistribution(low=low, high=high, step=step, log=log):
                params.append(trial.suggest_int(name, low, high, step=step, log=log))
            case CategoricalDistribution():
                params.append(trial.suggest_categorical(name, distribution.choices))
    return decode(domain, params)
