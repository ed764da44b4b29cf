from collections.abc import Sequence
from pathlib import Path

import pytest

from nasflow.config.search import (
    EvolutionConfig,
    GridConfig,
    HyperbandConfig,
    Objective,
    OptunaConfig,
    RandomConfig,
    StrategyConfig,
)
from nasflow.space.pick import Pick
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.strategy.make import make_strategy
from nasflow.testing.strategy import ACCURACY, PARAMETERS, StrategyContract, contract_program, finished
from nasflow.trial import STOP_AFTER


class ByConfig(StrategyContract):
    config: StrategyConfig

    def make(self, space: Space, objectives: Sequence[Objective], seed: int) -> Strategy:
        return make_strategy(self.config, space, objectives, seed, Path())


class TestRandom(ByConfig):
    config = RandomConfig()


class TestGrid(ByConfig):
    config = GridConfig(float_steps=3)


class TestEvolution(ByConfig):
    config = EvolutionConfig(population=8, tournament=3)


class TestEvolutionWithCrossover(ByConfig):
    config = EvolutionConfig(population=8, tournament=3, crossover=0.5)


def stopping_program(pick: Pick) -> None:
    contract_program(pick)
    pick(STOP_AFTER, [1, 3, 9])


class TestASHA(ByConfig):
    config = HyperbandConfig(kind="asha")
    program = staticmethod(stopping_program)


class TestHyperband(ByConfig):
    config = HyperbandConfig(kind="hyperband")
    program = staticmethod(stopping_program)


class TestBOHB(ByConfig):
    config = HyperbandConfig(kind="bohb")
    program = staticmethod(stopping_program)


class TestTPE(ByConfig):
    config = OptunaConfig(kind="tpe", params={"n_startup_trials": 5})
    rounds = 3


class TestNSGA2(ByConfig):
    config = OptunaConfig(kind="nsga2", params={"population_size": 8})
    rounds = 4


class TestGP(ByConfig):
    config = OptunaConfig(kind="gp", params={"n_startup_trials": 3})
    rounds = 3
    per_round = 2

    @pytest.fixture
    def objectives(self) -> list[Objective]:  # with two, a proposal takes about a second: see below
        return [ACCURACY]


def test_gp_takes_two_objectives() -> None:
    space = Space(contract_program)
    strategy = make_strategy(
        OptunaConfig(kind="gp", params={"n_startup_trials": 2}), space, [ACCURACY, PARAMETERS], 0, Path()
    )
    strategy.tell([finished(number, 0, architecture) for number, architecture in enumerate(strategy.ask(4))])
    space.validate(strategy.ask(1)[0])


class TestCMAES(ByConfig):
    config = OptunaConfig(kind="cmaes")
    rounds = 3

    @pytest.fixture
    def objectives(self) -> list[Objective]:
        return [ACCURACY]


class TestQMC(ByConfig):
    config = OptunaConfig(kind="qmc")
    rounds = 3
