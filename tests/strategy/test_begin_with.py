"""Strategies that begin with given architectures: they propose them first, learn from them, and resume as ever."""

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from nasflow.config.search import CustomStrategyConfig, EvolutionConfig, GridConfig, OptunaConfig, RandomConfig
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.strategy.begin_with import BeginWith
from nasflow.strategy.make import make_strategy
from nasflow.strategy.random_search import RandomSearch
from nasflow.testing.strategy import ACCURACY, contract_program, finished
from nasflow.trial import Trial, TrialStatus

SPACE = Space(contract_program)
FIRST = [SPACE.sample(random.Random(seed)) for seed in range(5)]
HERE = Path(__file__).parent
CONFIGS = {
    "random": RandomConfig(),
    "grid": GridConfig(float_steps=3),
    "evolution": EvolutionConfig(population=6, tournament=3),
    "tpe": OptunaConfig(kind="tpe", params={"n_startup_trials": 4}),
    "nsga2": OptunaConfig(kind="nsga2", params={"population_size": 4}),
    "cmaes": OptunaConfig(kind="cmaes"),
    "custom": CustomStrategyConfig(target="test_begin_with.py:Own"),
}


class Own(RandomSearch):
    """A user's strategy that knows nothing of given architectures."""

    def __init__(self, space, objectives, seed):
        super().__init__(space, seed)


class Resumed(Own):
    """A user's that has its own way to resume."""

    found: list[list[Trial]] | None = None

    def resume(self, rounds):
        self.found = [list(trials) for trials in rounds]
        super().resume(self.found)


def make(kind: str, first: Sequence[Architecture] = FIRST) -> Strategy:
    return make_strategy(CONFIGS[kind], SPACE, [ACCURACY], 7, HERE, first=first)


def search(strategy: Strategy, first: int, last: int, per_round: int) -> list[list[Trial]]:
    record = []
    for round in range(first, last):
        asked = strategy.ask(per_round)
        record.append([finished(round * per_round + place, round, one) for place, one in enumerate(asked)])
        strategy.tell(record[-1])
    return record


@pytest.mark.parametrize("per_round", [3, 8])  # fewer than were given, and more
@pytest.mark.parametrize("kind", CONFIGS)
def test_begins_with_them_and_resumes_as_if_uninterrupted(kind, per_round, caplog):
    record = search(make(kind), 0, 3, per_round)
    proposed = [trial.architecture for trials in record for trial in trials]
    assert proposed[: len(FIRST)] == FIRST
    for architecture in proposed:
        SPACE.validate(architecture)
    for cut in (1, 2):
        strategy = make(kind)
        strategy.resume(record[:cut])
        assert search(strategy, cut, 3, per_round) == record[cut:]
    assert "does not propose again" not in caplog.text


@pytest.mark.parametrize("kind", CONFIGS)
def test_given_later_they_come_first_in_the_next_round(kind, caplog):
    record = search(make(kind, []), 0, 2, 4)
    later = [record[1][2].architecture, *FIRST]  # the first of these has been tried
    strategy = make(kind, later)
    strategy.resume(record)
    record += search(strategy, 2, 6, 4)
    proposed = [trial.architecture for trials in record[2:] for trial in trials]
    assert proposed[: len(FIRST)] == FIRST
    assert proposed.count(FIRST[0]) == 1 or kind not in ("random", "evolution", "grid")
    for cut in (3, 5):
        again = make(kind, later)
        again.resume(record[:cut])
        assert search(again, cut, 6, 4) == record[cut:]
    assert "does not propose again" not in caplog.text


@pytest.mark.parametrize("kind", ["evolution", "grid", "tpe"])
def test_given_later_they_are_taken_over_in_a_search_with_rounds_ahead(kind):
    def resumed(record: list[list[Trial]]) -> list[Architecture]:
        strategy = make(kind, FIRST[:1])
        for trials in record:
            strategy.proposed(trials)
        return strategy.ask(3)

    begun = make(kind, [])
    record = [[finished(3 * round + n, round, one) for n, one in enumerate(begun.ask(3))] for round in range(2)]
    asked = resumed(record)
    assert asked[0] == FIRST[0]
    after = resumed([*record, [finished(6 + place, 2, one) for place, one in enumerate(asked)]])
    assert FIRST[0] not in after


def test_a_strategys_own_way_to_resume_is_called():
    def begun() -> tuple[Resumed, Strategy]:
        own = Resumed(SPACE, [ACCURACY], 7)
        return own, BeginWith(FIRST, own)

    record = search(begun()[1], 0, 3, 3)
    own, strategy = begun()
    strategy.resume(iter(record[:2]))
    assert own.found == record[:2]
    assert search(strategy, 2, 3, 3) == record[2:]


@pytest.mark.parametrize("kind", ["random", "evolution", "grid"])
def test_does_not_propose_them_again(kind):
    proposed = [trial.architecture for trials in search(make(kind), 0, 4, 6) for trial in trials]
    assert len(set(proposed)) == len(proposed)


def test_grid_leaves_them_out_of_its_order():
    class Letters:
        def __call__(self, pick):
            pick("letter", list("abcde"))

    space = Space(Letters())
    first = [Architecture({"letter": letter}) for letter in "dab"]
    strategy = make_strategy(GridConfig(), space, [ACCURACY], 0, Path(), first=first)
    assert [one["letter"] for one in strategy.ask(9)] == ["d", "a", "b", "c", "e"]


def test_evolution_breeds_from_them():
    best = max(FIRST, key=lambda one: one["depth"])
    strategy = make_strategy(EvolutionConfig(population=1, tournament=1), SPACE, [ACCURACY], 0, Path(), first=[best])
    strategy.ask(1)
    scored = {"status": TrialStatus.TRAINED, "metrics": {"val_accuracy": 1.0}}
    strategy.tell([finished(0, 0, best).model_copy(update=scored)])
    (child,) = strategy.ask(1)
    changed = {label for label, value in best.items() if child.get(label) != value}
    assert changed
    assert "optimizer.lr" not in changed or changed == {"optimizer.lr"}  # one choice, and what depends on it


class Listens(Own):
    """A user's strategy that keeps the proposals it is given."""

    def proposed(self, trials):
        self.heard = list(trials)


def test_a_strategy_that_proposes_what_was_given_hears_of_it():
    inner = Listens(SPACE, [ACCURACY], 7)
    record = [finished(number, 0, one) for number, one in enumerate([FIRST[0], FIRST[0], FIRST[1], FIRST[2]])]
    BeginWith([FIRST[0]], inner).proposed(record)
    assert inner.heard == record[1:]
    BeginWith([FIRST[3]], inner).proposed(record)
    assert inner.heard == record
