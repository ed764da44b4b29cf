"""Strategies whose space has changed since their trials were recorded."""

from pathlib import Path

import pytest

from nasflow.config.search import EvolutionConfig, HyperbandConfig, Objective, OptunaConfig, StrategyConfig
from nasflow.errors import InvalidArchitecture
from nasflow.space.architecture import Architecture
from nasflow.space.pick import Pick
from nasflow.space.space import Space
from nasflow.strategy.make import make_strategy
from nasflow.trial import STOP_AFTER, Trial, TrialStatus


def scored(number: int, architecture: Architecture) -> Trial:
    metrics = {"loss": float(number)}
    return Trial(
        number=number, round=0, architecture=architecture, seed=0, status=TrialStatus.TRAINED, metrics=metrics, epochs=1
    )


@pytest.mark.parametrize(
    "config",
    [
        EvolutionConfig(population=1, tournament=1),
        OptunaConfig(kind="tpe"),
        OptunaConfig(kind="nsga2", params={"population_size": 2}),
        HyperbandConfig(kind="bohb"),
    ],
    ids=lambda config: config.kind,
)
def test_a_recorded_architecture_that_the_space_refuses_by_now_teaches_nothing(config: StrategyConfig) -> None:
    def program(pick: Pick) -> None:
        if pick.int("x", 1, 99) == 50:
            raise InvalidArchitecture("since yesterday")
        pick(STOP_AFTER, [1, 3])

    space = Space(program)
    told = [Architecture({"x": x, STOP_AFTER: 1}) for x in range(40, 51)]
    strategy = make_strategy(config, space, [Objective(metric="loss", direction="minimize")], 0, Path())
    strategy.resume([[scored(number, architecture) for number, architecture in enumerate(told)]])
    for architecture in strategy.ask(6):
        space.validate(architecture)
