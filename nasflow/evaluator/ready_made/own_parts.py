"""Losses and metrics by import path."""

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn

from nasflow.config.evaluator.metrics import MetricConfig
from nasflow.config.evaluator.target import Target
from nasflow.errors import ConfigError, TrialError
from nasflow.load_target import check_params, load_target

if TYPE_CHECKING:
    from torchmetrics import Metric

Loss = Callable[[Tensor, Tensor], Tensor]


def make_loss(config: Target, base_dir: Path | None) -> Loss:
    """Return the loss that a closed config names: an object of a class made with the params, or a function with them.

    Raises:
        ConfigError: it can't be imported or called, or does not take its params.
    """
    found = load_target(config.target, base_dir or Path())
    if not isinstance(found, type):
        if not callable(found):
            raise ConfigError(f"evaluator.loss: {config.target} is not callable; it should be loss(output, target)")
        check_params("evaluator.loss", config.target, found, None, None, **config.params)
        return partial(found, **config.params)
    check_params("evaluator.loss", config.target, found, **config.params)
    try:
        made: Any = found(**config.params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"evaluator.loss: {config.target} does not take these params: {error}") from None
    if not callable(made):
        raise ConfigError(f"evaluator.loss: a {config.target} is not callable; it should be called with output, target")
    return made  # type: ignore[no-any-return]


def metric_class(config: MetricConfig, base_dir: Path | None) -> "tuple[type[Metric], dict[str, Any]]":
    """Return the class of a metric that has a target, and its params; `num_classes` is among those if it is asked for.

    Raises:
        ConfigError: it can't be imported, is no torchmetrics metric, or does not take its params.
    """
    from torchmetrics import Metric  # noqa: PLC0415 - slow

    key = f"evaluator.metrics ({config.name})"
    if hasattr(nn.ModuleDict(), config.name):
        raise ConfigError(f"{key}: torch reserves this name; give the metric another one")
    found = load_target(str(config.target), base_dir or Path())
    if not (isinstance(found, type) and issubclass(found, Metric)):
        raise ConfigError(f"{key}: {config.target} should be a torchmetrics.Metric class")
    params = dict(config.params)
    if "num_classes" in inspect.signature(found).parameters:
        params.setdefault("num_classes", None)
    check_params(key, str(config.target), found, **params)
    return found, params


def make_metric(config: MetricConfig, base_dir: Path | None, classes: int | None = None) -> "Metric":
    """Return a metric that has a target, for so many classes."""
    kind, params = metric_class(config, base_dir)
    if "num_classes" in params and params["num_classes"] is None:
        params["num_classes"] = classes
    try:
        return kind(**params)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"evaluator.metrics ({config.name}): {error}") from None


def metric_value(name: str, metric: "Metric") -> float:
    """Return what a metric comes to. Raises TrialError if that is not one number."""
    value = metric.compute()
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        what = f"a tensor {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise TrialError(f"metric {name}: {type(metric).__name__} gives {what}; it should give one number") from None


def is_known(code: Any) -> bool:
    """Whether a class, an object or a function is torch's or torchmetrics'."""
    if isinstance(code, partial):
        code = code.func
    module = code.__module__ if isinstance(code, type) or inspect.isfunction(code) else type(code).__module__
    return str(module).partition(".")[0] in ("torch", "torchmetrics")
