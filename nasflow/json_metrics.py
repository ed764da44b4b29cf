"""Metrics in a form that JSON can hold."""

from collections.abc import Mapping


def finite_or_none(value: float | None) -> float | None:
    """Return `value`, or None if it is NaN or infinite, which JSON can't hold."""
    return value if value is not None and float("-inf") < value < float("inf") else None


def json_metrics(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """Return `metrics` with None for every value that is not finite."""
    return {name: finite_or_none(value) for name, value in metrics.items()}


def finite_metrics(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Return the `metrics` that have finite values."""
    return {name: finite for name, value in metrics.items() if (finite := finite_or_none(value)) is not None}
