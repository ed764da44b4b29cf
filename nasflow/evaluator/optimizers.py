"""Optimizers and learning-rate schedules from their config."""

import inspect
import math
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR

from nasflow.config.search import OptimizerConfig, ScheduleConfig
from nasflow.errors import ConfigError

_OPTIMIZERS: dict[str, type[torch.optim.Optimizer]] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
    "nadam": torch.optim.NAdam,
    "radam": torch.optim.RAdam,
    "adamax": torch.optim.Adamax,
}


def make_optimizer(config: OptimizerConfig, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Return the torch optimizer of a closed config.

    Raises:
        ConfigError: the name is unknown, or the optimizer does not take a key that is set.
    """
    kind, options = _kind_and_options(config)
    return kind(parameters, **options)


def try_optimizer(config: OptimizerConfig, parameters: Iterable[torch.nn.Parameter]) -> torch.optim.Optimizer:
    """Make an optimizer as `make_optimizer` does, only to find mistakes; it is not meant for training.

    An optimizer's first parameter group makes torch import its compiler, which takes a second. This skips the import.
    """
    kind, options = _kind_and_options(config)
    add = inspect.unwrap(kind.add_param_group)  # torch wraps it to disable its compiler there
    plain: type[torch.optim.Optimizer] = type(kind.__name__, (kind,), {"add_param_group": add})
    return plain(parameters, **options)


def _kind_and_options(config: OptimizerConfig) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    kind = _OPTIMIZERS.get(str(config.name))
    if kind is None:
        raise ConfigError(f"evaluator.optimizer.name: there is no '{config.name}'; known: {', '.join(_OPTIMIZERS)}")
    options = {key: value for key, value in config.model_dump(exclude={"name"}).items() if value is not None}
    accepted = inspect.signature(kind).parameters
    for key in options:
        if key not in accepted:
            raise ConfigError(f"evaluator.optimizer.{key}: {config.name} does not take it; leave it out")
    return kind, options


class Schedule(LambdaLR):
    """A built-in learning-rate schedule; it draws no random numbers."""


def make_schedule(config: ScheduleConfig, optimizer: torch.optim.Optimizer, epochs: int) -> Schedule:
    """Return a schedule that steps once per epoch, for `epochs` epochs. Raises ConfigError for an unknown name."""
    shape = _SHAPES.get(str(config.name))
    if shape is None:
        raise ConfigError(f"evaluator.schedule.name: there is no '{config.name}'; known: {', '.join(_SHAPES)}")
    warmup = int(config.warmup_epochs)  # type: ignore[arg-type]
    rest = max(1, epochs - warmup)

    def factor(epoch: int) -> float:
        if epoch < warmup:
            return (epoch + 1) / (warmup + 1)
        return shape(config, epoch - warmup, rest)

    return Schedule(optimizer, factor)


def _cosine(config: ScheduleConfig, epoch: int, epochs: int) -> float:
    """Return the factor of cosine annealing (Loshchilov and Hutter 2017), without restarts."""
    end = float(config.end_factor)  # type: ignore[arg-type]
    return end + (1 - end) * 0.5 * (1 + math.cos(math.pi * min(epoch, epochs) / epochs))


def _linear(config: ScheduleConfig, epoch: int, epochs: int) -> float:
    end = float(config.end_factor)  # type: ignore[arg-type]
    return 1 - (1 - end) * min(epoch, epochs) / epochs


def _step(config: ScheduleConfig, epoch: int, epochs: int) -> float:
    return float(config.gamma ** (epoch // int(config.step_size)))  # type: ignore[arg-type,operator]


def _exponential(config: ScheduleConfig, epoch: int, epochs: int) -> float:
    return float(config.gamma**epoch)  # type: ignore[operator]


def _constant(config: ScheduleConfig, epoch: int, epochs: int) -> float:
    return 1.0


_SHAPES: dict[str, Callable[[ScheduleConfig, int, int], float]] = {
    "constant": _constant,
    "cosine": _cosine,
    "step": _step,
    "exponential": _exponential,
    "linear": _linear,
}
