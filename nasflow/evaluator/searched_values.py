"""Replace a config's searched values by choices: `{float: [1e-4, 1e-2]}` becomes the number chosen for it."""

from typing import Any, TypeVar

from pydantic import ValidationError

from nasflow.config.evaluator.optimizer import OptimizerConfig
from nasflow.config.reading.errors import explain
from nasflow.config.values import FloatRange, IntRange, Options, Section
from nasflow.errors import ConfigError
from nasflow.space.domain import Categorical, Domain, FloatDomain, IntDomain
from nasflow.space.pick import Pick

M = TypeVar("M", bound=Section)

_PLAIN = frozenset((bool, int, float, str, type(None)))
_BESIDE = ("log", "step", "steps", "q", "base", "scale", "low", "high")
"""What a searched value has beside its range or its options, or may be given by mistake."""


def close_searched(config: M, pick: Pick) -> M:
    """Return a copy of `config` in which every searched value is replaced by the pick's choice.

    A choice's label is the value's path in the config, such as `optimizer.lr` or `data.params.batch_size`.
    """
    return _close_model(config, pick, "")


def _close_model(config: M, pick: Pick, path: str) -> M:
    prefix = f"{path}." if path else ""
    if isinstance(config, OptimizerConfig) and isinstance(config.name, Options):
        config = _with_name(config, pick, f"{prefix}name")
    fields = {}
    for name in type(config).model_fields:
        value = getattr(config, name)
        if type(value) in _PLAIN:
            continue
        close = _close_items if isinstance(value, dict) else _close  # params as a whole are no searched value
        fields[name] = close(value, pick, f"{prefix}{name}")
    return config.replaced(**fields)


def _with_name(config: OptimizerConfig, pick: Pick, path: str) -> Any:
    """Return the section of the chosen optimizer, without keys that are for others among the options."""
    from nasflow.evaluator.ready_made.optimizers import unfit_keys  # noqa: PLC0415 - imports torch

    options: Any = config.name
    name = pick.domain(path, _domain(options))
    return config.replaced(**dict.fromkeys(unfit_keys(name, options.pick)), name=name)


def _close_items(values: dict[str, Any], pick: Pick, path: str) -> dict[str, Any]:
    return {key: _close(item, pick, f"{path}.{key}") for key, item in values.items()}


def _close(value: Any, pick: Pick, path: str) -> Any:
    searched = _as_searched(value, path)
    if searched is not None:
        return pick.domain(path, _domain(searched))
    if isinstance(value, Section):
        return _close_model(value, pick, path)
    if isinstance(value, dict):
        return _close_items(value, pick, path)
    if isinstance(value, list | tuple):
        return type(value)(_close(item, pick, f"{path}.{i}") for i, item in enumerate(value))
    return value


def _as_searched(value: Any, path: str) -> FloatRange | IntRange | Options[Any] | None:
    """Return `value` if it is a searched value, parsed if it is a plain mapping in free-form `params`; else None.

    Raises:
        ConfigError: a mapping is meant as a searched value, and is none.
    """
    if isinstance(value, FloatRange | IntRange | Options):
        return value
    if isinstance(value, dict):
        for key, kind in (("float", FloatRange), ("int", IntRange), ("pick", Options[Any])):
            if key in value:
                try:
                    return kind.model_validate(value)
                except ValidationError as error:
                    if _is_list_of_numbers(value):
                        raise ConfigError(
                            f"evaluator.{path}: '{key}' takes the lowest and the highest number"
                            f"{', which are whole' if key == 'int' else ''}; to choose among some, give "
                            f"{{pick: {value[key]}}}"
                        ) from None
                    if not isinstance(value[key], list) or not {*_BESIDE} >= value.keys() - {key} > set():
                        return None  # a user's mapping that only happens to have such a key
                    raise ConfigError(f"evaluator.{path}.{explain(error, kind)}") from None
    return None


def _is_list_of_numbers(value: dict[str, Any]) -> bool:
    """Whether a mapping has nothing but several numbers under one key."""
    [first, *others] = value.values()
    return (
        not others
        and isinstance(first, list)
        and len(first) > 1
        and all(isinstance(number, int | float) and not isinstance(number, bool) for number in first)
    )


def _domain(searched: FloatRange | IntRange | Options[Any]) -> Domain:
    if isinstance(searched, FloatRange):
        return FloatDomain(*searched.float, log=searched.log)
    if isinstance(searched, IntRange):
        return IntDomain(*searched.int, step=searched.step, log=searched.log)
    return Categorical(tuple(searched.pick))
