"""A trial that several members train, each with a seed of its own: their numbers, and their common metrics."""

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean

Metrics = Mapping[str, float]


def members_of(trial: int, repeats: int) -> range:
    """Return the numbers of the members that train a trial; the trial's own number if it has one member."""
    return range(trial * repeats, (trial + 1) * repeats)


def mean_and_spread(metrics: Sequence[Metrics]) -> dict[str, float]:
    """Return of each metric that all members have its mean, and its standard deviation as `<name>_std`.

    The deviation is that of a sample (n - 1); 0 for one member. A metric of that name that the members have themselves
    is not replaced.
    """
    values = {name: [each[name] for each in metrics] for name in metrics[0] if all(name in each for each in metrics)}
    found = {name: _mean(of) for name, of in values.items()}
    for name, of in values.items():
        if name != "parameters":
            found.setdefault(f"{name}_std", _deviation(of))
    return found


def common_history(histories: Sequence[Sequence[Metrics]], epochs: Iterable[int]) -> list[dict[str, float]]:
    """Return mean and spread of the members in these epochs (the first is 0); who has ended keeps the last metrics."""
    return [mean_and_spread([each[min(epoch, len(each) - 1)] for each in histories]) for epoch in epochs]


def _mean(values: Sequence[float]) -> float:
    total = sum(values)
    return fmean(values) if math.isfinite(total) else total / len(values)


def _deviation(values: Sequence[float]) -> float:
    if len(values) < 2:
        return 0.0
    mean = _mean(values)
    return math.sqrt(sum((value - mean) * (value - mean) for value in values) / (len(values) - 1))
