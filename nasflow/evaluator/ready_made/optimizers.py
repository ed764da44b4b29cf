"""Optimizers and learning-rate schedules from their config."""

import inspect
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.optim.lr_scheduler import LambdaLR, ReduceLROnPlateau

from nasflow.config.search import OptimizerConfig, ScheduleConfig
from nasflow.errors import ConfigError
from nasflow.load_target import load_target

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


def parameter_groups(module: torch.nn.Module, no_decay: Collection[str]) -> list[Any]:
    """Return the trainable parameters of a module, for an optimizer.

    Args:
        module: a model, or what trains it.
        no_decay: "norm" and "bias" give the parameters of modules with a class that is named as a norm, and parameters
            that are named as a bias, a group without weight decay.
    """
    named = [(name, parameter) for name, parameter in module.named_parameters() if parameter.requires_grad]
    if not no_decay:
        return [parameter for _, parameter in named]
    norms = [part for part in module.modules() if "norm" in type(part).__name__.lower()] if "norm" in no_decay else []
    of_norms = {id(parameter) for norm in norms for parameter in norm.parameters(recurse=False)}
    spared = [
        id(parameter) in of_norms or ("bias" in no_decay and "bias" in name.rpartition(".")[2])
        for name, parameter in named
    ]
    groups: list[dict[str, Any]] = [{"params": []}, {"params": [], "weight_decay": 0.0}]
    for (_, parameter), is_spared in zip(named, spared, strict=True):
        groups[is_spared]["params"].append(parameter)
    return [group for group in groups if group["params"]]


def make_optimizer(
    config: OptimizerConfig, parameters: Iterable[Any], base_dir: Path | None = None
) -> torch.optim.Optimizer:
    """Return the optimizer of a closed config.

    Args:
        parameters: as torch takes them, such as what `parameter_groups` gives.
        base_dir: the folder of the user's code.

    Raises:
        ConfigError: the name is unknown, the class can't be imported, or it does not take a key that is set.
    """
    kind, options = _kind_and_options(config, base_dir)
    return kind(parameters, **options)


def try_optimizer(
    config: OptimizerConfig, parameters: Iterable[Any], base_dir: Path | None = None
) -> torch.optim.Optimizer:
    """Make an optimizer as `make_optimizer` does, only to find mistakes; it is not meant for training.

    An optimizer's first parameter group makes torch import its compiler, which takes a second. This skips the import.
    """
    kind, options = _kind_and_options(config, base_dir)
    add = inspect.unwrap(kind.add_param_group)  # torch wraps it to disable its compiler there
    plain: type[torch.optim.Optimizer] = type(kind.__name__, (kind,), {"add_param_group": add})
    return plain(parameters, **options)


def unfit_keys(name: str, names: Sequence[str]) -> list[str]:
    """Return the keys that the optimizer `name` does not take, and another one of `names` does."""
    taken = {each: inspect.signature(_OPTIMIZERS[each]).parameters.keys() for each in {name, *names}}
    return [
        key
        for key in OptimizerConfig.model_fields
        if key not in taken[name] and any(key in each for each in taken.values())
    ]


_OF_GROUPS = ("name", "target", "params", "no_decay")


def _kind_and_options(
    config: OptimizerConfig, base_dir: Path | None
) -> tuple[type[torch.optim.Optimizer], dict[str, Any]]:
    kind = _kind(config, base_dir)
    options = {key: value for key, value in config.model_dump(exclude=set(_OF_GROUPS)).items() if value is not None}
    options.update(config.params)
    taken = inspect.signature(kind).parameters.values()
    accepted = {parameter.name for parameter in taken}
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in taken)
    shown = config.target or config.name
    if config.no_decay and not (takes_any or "weight_decay" in accepted):
        raise ConfigError(f"evaluator.optimizer.no_decay: {shown} has no weight decay; leave it out")
    if not takes_any and "lr" not in accepted and options.get("lr") == OptimizerConfig().lr:
        options.pop("lr", None)  # it is nasflow's default, not the user's
    for key in options:
        if not (takes_any or key in accepted):
            place = "params." if key in config.params else ""
            raise ConfigError(f"evaluator.optimizer.{place}{key}: {shown} does not take it; leave it out")
    return kind, options


def _kind(config: OptimizerConfig, base_dir: Path | None) -> type[torch.optim.Optimizer]:
    if config.target is None:
        kind = _OPTIMIZERS.get(str(config.name))
        if kind is None:
            raise ConfigError(f"evaluator.optimizer.name: there is no '{config.name}'; known: {', '.join(_OPTIMIZERS)}")
        return kind
    found = load_target(config.target, base_dir or Path())
    if not (isinstance(found, type) and issubclass(found, torch.optim.Optimizer)):
        raise ConfigError(f"evaluator.optimizer.target: {config.target} should be a torch.optim.Optimizer class")
    [_, *others] = inspect.signature(found.step).parameters.values()
    if any(p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in others):
        raise ConfigError(
            f"evaluator.optimizer.target: {config.target} needs a closure in every step, which members that "
            "share a job do not have; take an optimizer with a step() of its own"
        )
    return found


_LEAST = {
    **{"warmup_epochs": 0, "warmup_steps": 0, "restart_epochs": 0, "restart_steps": 0},
    **{"step_size": 1, "patience": 0, "power": 0, "rise": 0},
}
"""Of the numbers of a schedule."""


class Schedule(LambdaLR):
    """A built-in learning-rate schedule; it draws no random numbers."""


def make_schedule(
    config: ScheduleConfig, optimizer: torch.optim.Optimizer, epochs: int, steps: float = math.inf
) -> Schedule | ReduceLROnPlateau:
    """Return a schedule for `epochs` epochs, to be stepped as `config.interval` says.

    Args:
        steps: optimizer steps of an epoch, read if the interval is "step"; not finite if they are not known.

    Raises:
        ConfigError: the name is unknown, a number is out of its range, or the number of steps is needed and not known.
    """
    for key, least in _LEAST.items():
        value = getattr(config, key)
        if value is not None and value < least:
            raise ConfigError(f"evaluator.schedule.{key}: is {value}; it should be at least {least}")
    name = str(config.name)
    if name == "plateau":
        return _make_plateau(config, optimizer)
    shape = _SHAPES.get(name)
    if shape is None:
        raise ConfigError(f"evaluator.schedule.name: there is no '{name}'; known: {', '.join(_SHAPES)}, plateau")
    by_step = config.interval == "step"
    period = _whole(config.restart_steps or 0) + _in_units(config, "restart_epochs", steps)
    warmup = _whole(config.warmup_steps) * by_step + _in_units(config, "warmup_epochs", steps)
    rest = math.inf
    if period and name == "cosine":
        shape = _restarting(period, _whole(config.restart_mult))
    elif name in _TO_THE_END or not by_step:
        rest = max(1, epochs * _known_steps(config, steps) - warmup)

    def factor(place: int) -> float:
        if place < warmup:
            return (place + 1) / (warmup + 1)
        return shape(config, place - warmup, rest)

    return Schedule(optimizer, factor)


_Shape = Callable[[ScheduleConfig, int, float], float]


def _whole(number: Any) -> int:
    return int(number)


def _known_steps(config: ScheduleConfig, steps: float) -> int:
    """Return how often the schedule is stepped in an epoch."""
    if config.interval == "epoch":
        return 1
    if not (math.isfinite(steps) and steps > 0):
        raise ConfigError(
            f"evaluator.schedule: '{config.name}' by step needs the number of steps in an epoch, and the training "
            "loader does not know its length; give the loader a __len__, or use 'interval: epoch'"
        )
    return int(steps)


def _in_units(config: ScheduleConfig, key: str, steps: float) -> int:
    """Return a number of epochs as how often the schedule is stepped in them."""
    epochs = _whole(getattr(config, key) or 0)
    return epochs * _known_steps(config, steps) if epochs else 0


def _make_plateau(config: ScheduleConfig, optimizer: torch.optim.Optimizer) -> ReduceLROnPlateau:
    if _whole(config.warmup_epochs):
        raise ConfigError("evaluator.schedule.warmup_epochs: plateau has no warm-up; leave it out")
    gamma, end = float(config.gamma), float(config.end_factor)  # type: ignore[arg-type]
    if not 0 <= gamma < 1:
        raise ConfigError(f"evaluator.schedule.gamma: is {gamma}; plateau needs a number from 0 to below 1")
    mode: Any = "min" if config.direction == "minimize" else "max"
    lowest = [end * float(group["lr"]) for group in optimizer.param_groups]
    return ReduceLROnPlateau(optimizer, mode, gamma, _whole(config.patience), min_lr=lowest)


def _end(config: ScheduleConfig) -> float:
    return float(config.end_factor)  # type: ignore[arg-type]


def _half_cosine(start: float, end: float, share: float) -> float:
    return end + (start - end) * 0.5 * (1 + math.cos(math.pi * share))


def _cosine(config: ScheduleConfig, place: int, length: float) -> float:
    """Return the factor of cosine annealing (Loshchilov and Hutter 2017), without restarts."""
    return _half_cosine(1, _end(config), min(place, length) / length)


def _restarting(period: int, mult: int) -> _Shape:
    """Return cosine annealing with restarts after `period` places, then `period * mult` more, and so on."""
    if period < 1 or mult < 1:
        raise ConfigError("evaluator.schedule: restart_epochs, restart_steps and restart_mult should be at least 1")

    def shape(config: ScheduleConfig, place: int, _: float) -> float:
        if mult == 1:
            return _cosine(config, place % period, period)
        length = period
        while place >= length:
            place, length = place - length, length * mult
        return _cosine(config, place, length)

    return shape


def _one_cycle(config: ScheduleConfig, place: int, length: float) -> float:
    """Return the factor of the one-cycle policy (Smith and Topin 2018), by cosines, as torch's OneCycleLR."""
    rise, start = float(config.rise), float(config.start_factor)  # type: ignore[arg-type]
    top, last = rise * length - 1, length - 1
    if place <= top:
        return _half_cosine(start, 1, place / top if top > 0 else 1)
    top = max(top, 0)
    return _half_cosine(1, _end(config), min(1, (place - top) / (last - top)) if last > top else 1)


def _polynomial(config: ScheduleConfig, place: int, length: float) -> float:
    share = 1 - min(place, length) / length
    return float(_end(config) + (1 - _end(config)) * share**config.power)  # type: ignore[operator]


def _linear(config: ScheduleConfig, place: int, length: float) -> float:
    return 1 - (1 - _end(config)) * min(place, length) / length


def _step(config: ScheduleConfig, place: int, _: float) -> float:
    return float(config.gamma ** (place // int(config.step_size)))  # type: ignore[arg-type,operator]


def _exponential(config: ScheduleConfig, place: int, _: float) -> float:
    return float(config.gamma**place)  # type: ignore[operator]


def _constant(config: ScheduleConfig, place: int, _: float) -> float:
    return 1.0


_SHAPES: dict[str, _Shape] = {
    "constant": _constant,
    "cosine": _cosine,
    "step": _step,
    "exponential": _exponential,
    "linear": _linear,
    "polynomial": _polynomial,
    "one_cycle": _one_cycle,
}
_TO_THE_END = ("cosine", "linear", "polynomial", "one_cycle")  # their shape depends on how long the training is
