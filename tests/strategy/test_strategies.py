import logging
import math
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import optuna
import pytest

from nasflow.config.search import (
    CustomStrategyConfig,
    EvolutionConfig,
    GridConfig,
    Objective,
    OptunaConfig,
    RandomConfig,
    StrategyConfig,
)
from nasflow.errors import ConfigError, InvalidArchitecture
from nasflow.pareto import pareto_ranks
from nasflow.space.architecture import Architecture
from nasflow.space.pick import Pick
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.strategy.make import make_strategy
from nasflow.testing.strategy import ACCURACY, PARAMETERS, contract_program, finished
from nasflow.trial import Trial, TrialStatus

LOSS = [Objective(metric="loss", direction="minimize")]


def make(config: StrategyConfig, space: Space, objectives: Sequence[Objective] = LOSS, seed: int = 0) -> Strategy:
    return make_strategy(config, space, objectives, seed, Path(__file__).parent)


def scored(number: int, round: int, architecture: Architecture, **metrics: float) -> Trial:
    return Trial(
        number=number, round=round, architecture=architecture, seed=0, status=TrialStatus.TRAINED, metrics=metrics
    )


def run(
    strategy: Strategy, score: Callable[[Architecture], dict[str, float]], rounds: int, per_round: int
) -> list[Trial]:
    trials: list[Trial] = []
    for round in range(rounds):
        told = [
            scored(len(trials) + place, round, architecture, **score(architecture))
            for place, architecture in enumerate(strategy.ask(per_round))
        ]
        strategy.tell(told)
        trials += told
    return trials


def bits(pick: Pick) -> list[int]:
    return [pick(f"b{place:02}", [0, 1, 2, 3]) for place in range(12)]


def hidden_word(architecture: Architecture) -> dict[str, float]:
    word = random.Random(5).choices(range(4), k=12)
    return {"loss": float(sum(architecture[f"b{place:02}"] != letter for place, letter in enumerate(word)))}


@pytest.mark.parametrize(
    "config",
    [
        EvolutionConfig(population=24, tournament=8),
        EvolutionConfig(population=24, tournament=8, crossover=0.5),
        OptunaConfig(kind="tpe"),
    ],
    ids=["evolution", "crossover", "tpe"],
)
def test_learning_beats_random_search(config: StrategyConfig) -> None:
    def best(config: StrategyConfig, seed: int) -> float:
        trials = run(make(config, Space(bits), seed=seed), hidden_word, rounds=12, per_round=12)
        return min(trial.metrics["loss"] for trial in trials)

    for seed in (0, 1):
        assert best(config, seed) < best(RandomConfig(), seed)


def conditional(pick: Pick) -> None:
    kind = pick("kind", ["a", "b", "c"])
    if kind == "a":
        pick.float("rate", 0, 1)
    if kind == "b" and pick.int("n", 1, 3) == 2:
        raise InvalidArchitecture("b does not come in twos")


def test_grid_covers_a_conditional_space_exactly_once() -> None:
    space = Space(conditional)
    strategy = make(GridConfig(float_steps=3), space)
    asked = [strategy.ask(2) for _ in range(5)]
    assert [len(part) for part in asked] == [2, 2, 2, 0, 0]
    found = [architecture for part in asked for architecture in part]
    assert found == list(space.enumerate(3))
    assert len(set(found)) == 6 == space.count(float_steps=3).value


def test_grid_goes_on_behind_its_own_record_without_walking_to_it() -> None:
    explored = []

    def program(pick: Pick) -> None:
        explored.append(0)
        for place in range(50):
            pick(f"x{place:02}", range(10))

    def point(number: int) -> Architecture:
        return Architecture({f"x{place:02}": number // 10 ** (49 - place) % 10 for place in range(50)})

    strategy = make(GridConfig(), Space(program))
    strategy.resume([[scored(number, 0, point(number), loss=1.0) for number in range(2000)]])
    assert strategy.ask(2) == [point(2000), point(2001)]
    assert len(explored) < 300


def test_grid_tries_what_another_strategy_left_out() -> None:
    space = Space(lambda pick: [pick(f"x{place}", [1, 2, 3]) for place in range(3)])
    every = list(space.enumerate())
    for tried in ([*every[20:], *every[:3]], [every[0], every[26]], [every[0], every[1], every[7], every[8]]):
        trials = [scored(number, 0, architecture, loss=1.0) for number, architecture in enumerate(tried)]
        strategy = make(GridConfig(), space)
        strategy.resume([trials])
        begun = [architecture for architecture in every if architecture not in tried]
        asked = strategy.ask(5)
        assert asked == begun[:5]
        again = make(GridConfig(), space)
        again.resume([trials, [scored(30 + n, 1, architecture, loss=1.0) for n, architecture in enumerate(asked)]])
        assert again.ask(99) == begun[5:]


def test_grid_begins_where_recorded_numbers_are_not_on_it() -> None:
    space = Space(lambda pick: pick.float("x", 0.0, 1.0))
    strategy = make(GridConfig(float_steps=3), space)
    strategy.resume([[scored(n, 0, Architecture({"x": x}), loss=1.0) for n, x in enumerate([0.3, 0.5])]])
    assert [architecture["x"] for architecture in strategy.ask(9)] == [0.0, 1.0]


@pytest.mark.parametrize("config", [RandomConfig(), EvolutionConfig(population=4, tournament=2)], ids=lambda c: c.kind)
def test_a_finite_space_is_proposed_once_and_then_no_more(config: StrategyConfig) -> None:
    space = Space(lambda pick: [pick(f"x{place}", [1, 2, 3]) for place in range(3)])
    trials = run(make(config, space), lambda a: {"loss": float(sum(a.values()))}, rounds=6, per_round=6)
    assert len(trials) == 27 and {trial.architecture for trial in trials} == set(space.enumerate())
    resumed = make(config, space)
    resumed.resume([trials[:12], trials[12:18]])
    assert resumed.ask(6) == [trial.architecture for trial in trials[18:24]]


def test_random_proposes_again_only_where_new_ones_can_not_be_counted_out() -> None:
    def rare(pick: Pick) -> None:
        if pick("x", [1, 2]) == 1 and pick.int("y", 1, 10**9) == 1:
            pick.float("z", 0, 1)

    def narrow(pick: Pick) -> None:
        pick.float("z", 1, math.nextafter(1, 2))  # two numbers, which nobody counts

    assert len(set(make(RandomConfig(), Space(rare)).ask(30))) == 30
    assert len(make(RandomConfig(), Space(narrow)).ask(3)) == 3


@pytest.mark.parametrize(
    "config", [RandomConfig(), EvolutionConfig(), GridConfig(float_steps=3)], ids=lambda config: config.kind
)
def test_resuming_ten_thousand_trials_takes_no_exploring(config: StrategyConfig) -> None:
    explored = []

    def program(pick: Pick) -> None:
        explored.append(0)
        bits(pick)

    architectures = [Architecture({f"b{place:02}": n >> 2 * place & 3 for place in range(12)}) for n in range(10_000)]
    trials = [scored(n, n // 100, architecture, loss=1.0) for n, architecture in enumerate(architectures)]
    strategy = make(config, Space(program))
    strategy.resume(trials[first : first + 100] for first in range(0, 10_000, 100))
    assert not explored
    assert len(strategy.ask(10)) == 10


def test_evolution_forgets_the_old_however_good() -> None:
    space = Space(bits)
    rng = random.Random(0)
    old = Architecture(dict.fromkeys(space.sample(rng), 0))
    young = [space.sample(rng) for _ in range(4)]
    strategy = make(EvolutionConfig(population=4, tournament=4), space)
    strategy.tell([scored(0, 0, old, loss=0.0), *(scored(1 + n, 0, a, loss=1.0 + n) for n, a in enumerate(young))])
    for child in strategy.ask(5):
        assert sum(child[label] != young[0][label] for label in child) == 1  # the best of those alive is the parent


def test_evolution_samples_until_its_population_is_full() -> None:
    space = Space(bits)
    trials = [scored(n, 0, space.sample(random.Random(n)), loss=1.0) for n in range(3)]
    evolution, at_random = make(EvolutionConfig(population=4), space), make(RandomConfig(), space)
    for strategy in (evolution, at_random):
        strategy.tell(trials)
    assert evolution.ask(5) == at_random.ask(5)


def test_evolution_maximizes_where_told() -> None:
    space = Space(bits)
    most = [Objective(metric="loss", direction="maximize")]
    trials = run(
        make(EvolutionConfig(population=16, tournament=8), space, most),
        lambda a: {"loss": float(sum(a.values()))},
        12,
        16,
    )
    first, last = (sum(trial.metrics["loss"] for trial in part) / 16 for part in (trials[:16], trials[-16:]))
    assert last > first + 5


def test_evolution_breeds_from_the_front() -> None:
    space = Space(bits)
    base = dict.fromkeys(space.sample(random.Random(0)), 0)
    values = {0: (1.0, 9.0), 1: (9.0, 1.0), 2: (9.0, 9.0), 3: (10.0, 10.0)}
    parents = {n: Architecture({**base, "b00": n, "b01": n, "b02": n}) for n in values}
    two = [Objective(metric="x", direction="minimize"), Objective(metric="y", direction="minimize")]
    strategy = make(EvolutionConfig(population=4, tournament=4), space, two)
    strategy.tell([scored(n, 0, parents[n], x=x, y=y) for n, (x, y) in values.items()])

    def nearest(child: Architecture) -> int:
        return min(parents, key=lambda n: sum(child[label] != parents[n][label] for label in child))

    assert {nearest(child) for child in strategy.ask(40)} == {0, 1}


def test_nsga2_finds_a_front() -> None:
    def program(pick: Pick) -> None:
        for place in range(6):
            pick.float(f"x{place}", 0, 1)

    def zdt1(a: Architecture) -> dict[str, float]:
        g = 1 + 9 * sum(a[f"x{place}"] for place in range(1, 6)) / 5
        return {"f1": a["x0"], "f2": g * (1 - (a["x0"] / g) ** 0.5)}

    two = [Objective(metric="f1", direction="minimize"), Objective(metric="f2", direction="minimize")]
    config = OptunaConfig(kind="nsga2", params={"population_size": 20})
    trials = run(make(config, Space(program), two), zdt1, rounds=30, per_round=20)

    def distance(part: list[Trial]) -> float:  # of the front from the true one, f2 = 1 - sqrt(f1)
        points = [(trial.metrics["f1"], trial.metrics["f2"]) for trial in part]
        front = [point for point, rank in zip(points, pareto_ranks(points), strict=True) if rank == 0]
        return sum(f2 - (1 - f1**0.5) for f1, f2 in front) / len(front)

    assert distance(trials[-60:]) < 0.3 * distance(trials[:60])


@pytest.mark.parametrize("kind", ["tpe", "nsga2", "qmc"])
def test_another_record_is_learned_from_with_one_warning(kind: Any, caplog: pytest.LogCaptureFixture) -> None:
    space, objectives = Space(contract_program), [ACCURACY, PARAMETERS]
    rng = random.Random(0)
    record = [[finished(4 * r + n, r, space.sample(rng)) for n in range(4)] for r in range(4)]
    strategy = make(OptunaConfig(kind=kind), space, objectives)
    with caplog.at_level(logging.WARNING, logger="nasflow"):
        strategy.resume(record)
    assert [entry.message.startswith("Optuna") for entry in caplog.records] == [True]
    assert "from round 0 on" in caplog.text
    study: optuna.Study = strategy._study  # type: ignore[attr-defined]
    complete = study.get_trials(states=[optuna.trial.TrialState.COMPLETE])
    learned = [[-t.metrics["val_accuracy"], t.metrics["parameters"]] for part in record for t in part if t.metrics]
    assert [trial.values for trial in complete] == learned
    assert not study.get_trials(states=[optuna.trial.TrialState.RUNNING])
    for round in (4, 5):
        asked = strategy.ask(4)
        for architecture in asked:
            space.validate(architecture)
        strategy.tell([finished(4 * round + n, round, architecture) for n, architecture in enumerate(asked)])


@pytest.mark.parametrize("kind", ["tpe", "nsga2", "cmaes"])
def test_what_is_learned_from_another_record_follows_from_its_results(kind: Any) -> None:
    def program(pick: Pick) -> None:
        for place in range(3):
            pick.float(f"x{place}", 0, 1)

    space = Space(program)
    tried = [space.sample(random.Random(number)) for number in range(60)]
    means = []
    for sign in (1, -1):
        config = OptunaConfig(kind=kind, params={"population_size": 20} if kind == "nsga2" else {})
        strategy = make(config, space)
        losses = [sign * sum(architecture.values()) for architecture in tried]
        strategy.resume([[scored(n, n // 20, tried[n], loss=losses[n]) for n in range(r, r + 20)] for r in (0, 20, 40)])
        means.append(statistics.mean(value for architecture in strategy.ask(10) for value in architecture.values()))
    assert means[0] < means[1] - 0.1, means


@pytest.mark.parametrize("kind", ["nsga2", "cmaes"])
def test_generations_begin_with_given_architectures(kind: Any) -> None:
    def program(pick: Pick) -> None:
        for place in range(3):
            pick.float(f"x{place}", 0, 1)

    space = Space(program)
    first = [space.sample(random.Random(number)) for number in range(40)]
    means = []
    for sign in (1, -1):
        config = OptunaConfig(kind=kind, params={"population_size": 20} if kind == "nsga2" else {})
        strategy = make_strategy(config, space, LOSS, 0, Path(), first=first)
        trials = run(strategy, lambda a, sign=sign: {"loss": sign * sum(a.values())}, rounds=3, per_round=20)  # type: ignore[misc]
        assert [trial.architecture for trial in trials[:40]] == first
        means.append(statistics.mean(value for trial in trials[40:] for value in trial.architecture.values()))
    assert means[0] < means[1] - 0.1, means


def test_optuna_learns_what_a_changed_record_says() -> None:
    space = Space(bits)
    first = make(OptunaConfig(kind="tpe"), space)
    trials = run(first, hidden_word, rounds=2, per_round=12)
    retried = make(OptunaConfig(kind="tpe"), space)
    failed = trials[0].model_copy(update={"status": TrialStatus.FAILED, "metrics": {}})
    retried.resume([[failed, *trials[1:12]], trials[12:]])
    study: optuna.Study = retried._study  # type: ignore[attr-defined]
    assert len(study.get_trials(states=[optuna.trial.TrialState.COMPLETE])) == 23


def test_optuna_passes_over_invalid_architectures() -> None:
    def program(pick: Pick) -> None:
        if pick("a", [0, 1]) != pick("b", [0, 1]):
            raise InvalidArchitecture("a and b should be equal")

    asked = make(OptunaConfig(kind="tpe"), Space(program)).ask(20)
    assert {architecture.to_json() for architecture in asked} == {'{"a":0,"b":0}', '{"a":1,"b":1}'}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (
            OptunaConfig(kind="tpe", params={"n_startup": 3}),
            r"^strategy\.params\.n_startup: tpe has no such param; it has .*n_startup_trials",
        ),
        (OptunaConfig(kind="tpe", params={"gamma": 0.2}), r"^strategy\.params\.gamma: leave it out; tpe takes Python"),
        (
            OptunaConfig(kind="nsga2", params={"constraints_func": "mine.py:limits"}),
            r"^strategy\.params\.constraints_func: leave it out; .* has population_size, mutation_prob, ",
        ),
        (OptunaConfig(kind="gp", params={"independent_sampler": "tpe"}), r"^strategy\.params\.independent_sampler: "),
        (OptunaConfig(kind="cmaes", params={"source_trials": []}), r"^strategy\.params\.source_trials: leave it out"),
        (OptunaConfig(kind="tpe", params={"seed": 3}), r"^strategy\.params\.seed: leave it out"),
        (
            OptunaConfig(kind="nsga2", params={"population_size": 1}),
            r"^strategy\.params\.population_size: nsga2 refuses",
        ),
        (
            CustomStrategyConfig(kind="custom", target="strategies.py:Fixed", params={"value": 1, "x": 1}),
            r"^strategy\.params: .*'x'",
        ),
        (CustomStrategyConfig(kind="custom", target="strategies.py:Path"), r"^strategy\.target: .*no subclass"),
    ],
)
def test_wrong_params_are_told_by_key(config: StrategyConfig, message: str, tmp_path: Path) -> None:
    (tmp_path / "strategies.py").write_text(CUSTOM)
    with pytest.raises(ConfigError, match=message):
        make_strategy(config, Space(bits), LOSS, 0, tmp_path)


def test_params_that_are_functions_may_be_left_empty() -> None:
    assert make(OptunaConfig(kind="tpe", params={"gamma": None, "n_startup_trials": 2}), Space(bits)).ask(1)


def test_cmaes_takes_one_objective() -> None:
    with pytest.raises(ConfigError, match=r"^strategy\.kind: cmaes takes one objective, not 2"):
        make(OptunaConfig(kind="cmaes"), Space(bits), [ACCURACY, PARAMETERS])


CUSTOM = """
from pathlib import Path
from nasflow.strategy.base import Strategy

class Fixed(Strategy):
    def __init__(self, space, objectives, seed, value):
        self.made = [space, objectives, seed, value]

    def ask(self, count):
        return []

    def tell(self, trials):
        pass
"""


def test_a_custom_strategy_is_made_from_the_search_and_its_params(tmp_path: Path) -> None:
    (tmp_path / "strategies.py").write_text(CUSTOM)
    config = CustomStrategyConfig(kind="custom", target="strategies.py:Fixed", params={"value": 7})
    space = Space(bits)
    made: Any = make_strategy(config, space, LOSS, 3, tmp_path)
    assert made.made == [space, LOSS, 3, 7]
