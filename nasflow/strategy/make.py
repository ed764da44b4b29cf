"""The strategy that a config asks for."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, assert_never

from nasflow.config.search import (
    CustomStrategyConfig,
    EvolutionConfig,
    GridConfig,
    HyperbandConfig,
    Objective,
    OptunaConfig,
    RandomConfig,
    SearchConfig,
    StrategyConfig,
)
from nasflow.errors import ConfigError
from nasflow.load_target import check_params, load_target
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.strategy.begin_with import BeginWith
from nasflow.strategy.evolution import Evolution
from nasflow.strategy.grid import GridSearch
from nasflow.strategy.hyperband import Hyperband
from nasflow.strategy.random_search import RandomSearch


def make_strategy(
    config: StrategyConfig,
    space: Space,
    objectives: Sequence[Objective],
    seed: int,
    base_dir: Path,
    *,
    first: Sequence[Architecture] = (),
) -> Strategy:
    """Return the strategy on a space. A custom one is built as `Class(space=, objectives=, seed=, **params)`.

    Args:
        config: the `strategy` section of the search config.
        space: everything that is searched, including the evaluator's values.
        objectives: what is minimized or maximized.
        seed: of the search.
        base_dir: where a `file.py:Name` target is looked for.
        first: what is tried first; the strategy learns from it as from its own.

    Raises:
        ConfigError: a sampler's param is wrong, or a custom target does not exist or is no strategy; names the key.
    """
    match config:
        case RandomConfig():
            return RandomSearch(space, seed, first)
        case GridConfig():
            return GridSearch(space, config.float_steps, first)
        case EvolutionConfig():
            return Evolution(space, config, objectives, seed, first)
        case HyperbandConfig(kind="bohb"):
            from nasflow.strategy.bohb import Bohb  # noqa: PLC0415  # slow

            return Bohb(space, config, objectives, seed, first)
        case HyperbandConfig():
            return Hyperband(space, config, objectives, seed, first)
        case OptunaConfig():
            from nasflow.strategy.optuna.sampler import OptunaStrategy, make_sampler  # noqa: PLC0415  # slow

            return OptunaStrategy(space, make_sampler(config, len(objectives), seed), objectives, first)
        case CustomStrategyConfig():
            custom = _custom(config, space, objectives, seed, base_dir)
            return BeginWith(first, custom) if first else custom
    assert_never(config)


def refuse_rounds_ahead(strategy: Strategy, config: SearchConfig) -> None:
    """Raise ConfigError if the config has `budget.rounds_ahead` and the strategy can't be asked ahead."""
    if config.budget.rounds_ahead and not strategy.asks_ahead:
        raise ConfigError(
            f"budget.rounds_ahead: {type(strategy).__name__} needs the results of each round before it proposes the "
            "next; set it to 0, or implement `proposed` (nasflow.strategy.base)"
        )


def _custom(
    config: CustomStrategyConfig, space: Space, objectives: Sequence[Objective], seed: int, base_dir: Path
) -> Strategy:
    build: Any = load_target(config.target, base_dir)
    if not (isinstance(build, type) and issubclass(build, Strategy)):
        raise ConfigError(f"strategy.target: '{config.target}' is no subclass of nasflow.strategy.base.Strategy")
    params = {**config.params, "space": space, "objectives": objectives, "seed": seed}
    check_params("strategy.params", config.target, build, **params)
    strategy: Strategy = build(**params)
    return strategy
