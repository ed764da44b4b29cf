"""ASHA and Hyperband on tables of results: who is promoted, to which rung, and what that costs."""

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from nasflow.config.search import HyperbandConfig, Objective, SearchConfig, parse_config
from nasflow.errors import ConfigError
from nasflow.space.architecture import Architecture
from nasflow.space.pick import Pick
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.strategy.make import make_strategy
from nasflow.trial import STOP_AFTER, Trial, TrialStatus, trial_seed, without_stop

LOSS = [Objective(metric="loss", direction="minimize")]


def program(pick: Pick) -> None:
    pick.float("x", 0.0, 1.0)
    pick(STOP_AFTER, [1, 3, 9, 27])


def strategy(kind: Any = "asha", seed: int = 0, build: Any = program, **config: Any) -> Strategy:
    return make_strategy(HyperbandConfig(kind=kind, **config), Space(build), LOSS, seed, Path())


def trained(number: int, architecture: Architecture, rng: random.Random | None = None, **changes: Any) -> Trial:
    """A trial on the table: the loss falls to `x`, with noise that falls, too."""
    epochs = architecture[STOP_AFTER]
    noise = rng.gauss(0, 0.3) / epochs if rng else 0.0
    values = {"metrics": {"loss": architecture["x"] + 1 / epochs + noise}, "epochs": epochs, **changes}
    status = values.pop("status", TrialStatus.TRAINED)
    return Trial(number=number, round=0, architecture=architecture, seed=0, status=status, **values)


def search(strategy: Strategy, rounds: int, per_round: int = 9, seed: int | None = None) -> list[list[Trial]]:
    rng = None if seed is None else random.Random(seed)
    record: list[list[Trial]] = []
    for round in range(rounds):
        asked = strategy.ask(per_round)
        record.append([trained(per_round * round + place, one, rng) for place, one in enumerate(asked)])
        strategy.tell(record[-1])
    return record


def test_the_best_third_of_a_rung_is_promoted() -> None:
    first, second, third = search(strategy(), 3)
    assert {trial.architecture[STOP_AFTER] for trial in first} == {1}
    best = sorted(first, key=lambda trial: trial.metrics["loss"])[:3]
    promoted = [trial.architecture for trial in second if trial.architecture[STOP_AFTER] == 3]
    assert [without_stop(one) for one in promoted] == [without_stop(trial.architecture) for trial in best]
    assert Counter(trial.architecture[STOP_AFTER] for trial in second) == {1: 6, 3: 3}
    [champion] = [trial.architecture for trial in third if trial.architecture[STOP_AFTER] == 9]
    assert without_stop(champion) == without_stop(best[0].architecture)
    assert third[0].architecture == champion, "the highest rung comes first"


def test_no_architecture_is_at_one_rung_twice() -> None:
    trials = [trial.architecture for round in search(strategy(), 20) for trial in round]
    assert len(set(trials)) == len(trials) == 180
    rungs: dict[Architecture, list[int]] = {}
    for one in trials:
        rungs.setdefault(without_stop(one), []).append(one[STOP_AFTER])
    assert all(epochs == [1, 3, 9, 27][: len(epochs)] for epochs in rungs.values()), "one rung after the other"
    assert max(map(len, rungs.values())) == 4


def test_hyperband_begins_at_several_rungs() -> None:
    trials = [trial.architecture for round in search(strategy("hyperband"), 20) for trial in round]
    begins: dict[Architecture, int] = {}
    for one in trials:
        begins.setdefault(without_stop(one), one[STOP_AFTER])
    counts = Counter(begins.values())
    assert set(counts) == {1, 3, 9, 27}
    assert counts[1] > counts[3] > counts[27]


@pytest.mark.parametrize("kind", ["asha", "hyperband"])
def test_they_find_the_best_with_a_third_of_the_epochs(kind: Any) -> None:
    """Over twenty searches, against as many architectures as began, each trained to its end."""
    spent = full = 0
    regrets = []
    for seed in range(20):
        trials = [trial for round in search(strategy(kind, seed), 12, seed=seed) for trial in round]
        known: dict[Architecture, int] = {}
        for trial in trials:
            base, until = without_stop(trial.architecture), trial.architecture[STOP_AFTER]
            spent += until - known.get(base, 0)
            known[base] = until
        full += 27 * len(known)
        final = [base["x"] for base, until in known.items() if until == 27]
        regrets.append(min(final) - min(base["x"] for base in known))
    assert spent <= 0.35 * full
    assert sorted(regrets)[10] <= 0.02


def test_trials_that_failed_or_ended_by_themselves_are_not_promoted() -> None:
    asha = strategy()
    asked = sorted(asha.ask(9), key=lambda one: one["x"])
    ends: list[dict[str, Any]] = [
        {"status": TrialStatus.FAILED, "metrics": {}},
        {"status": TrialStatus.STOPPED_EARLY, "epochs": 0},
        *[{}] * 7,
    ]
    asha.tell([trained(number, one, **end) for number, (one, end) in enumerate(zip(asked, ends, strict=True))])
    promoted = [without_stop(one) for one in asha.ask(9) if one[STOP_AFTER] == 3]
    assert promoted == [without_stop(asked[2])], "of eight scored, two are best, and one of them has ended"


def test_a_finite_space_is_used_up_once() -> None:
    def few(pick: Pick) -> None:
        pick("x", [0.1, 0.2, 0.3, 0.4])
        pick(STOP_AFTER, [1, 3])

    rounds = search(strategy(build=few), 6, per_round=3)
    trials = [trial.architecture for round in rounds for trial in round]
    counts = Counter(one[STOP_AFTER] for one in trials)
    assert counts[1] == 4
    assert counts[3] in (1, 2), "the fourth may be better than the one that was promoted first"
    assert rounds[-1] == []


def test_given_architectures_come_first() -> None:
    given = Architecture({"x": 0.0, STOP_AFTER: 1})
    asha = make_strategy(HyperbandConfig(kind="asha"), Space(program), LOSS, 0, Path(), first=[given])
    first, second, *_ = search(asha, 3)
    assert first[0].architecture == given
    assert second[0].architecture == Architecture({"x": 0.0, STOP_AFTER: 3})


@pytest.mark.parametrize("kind", ["asha", "hyperband", "bohb"])
def test_a_given_architecture_is_not_begun_again(kind: Any) -> None:
    def few(pick: Pick) -> None:
        pick("x", [0.1, 0.2, 0.3])
        pick(STOP_AFTER, [1, 3])

    for seed in range(5):
        given = Architecture({"x": 0.2, STOP_AFTER: 1})
        made = make_strategy(HyperbandConfig(kind=kind), Space(few), LOSS, seed, Path(), first=[given])
        trials = [trial.architecture for round in search(made, 4, per_round=4) for trial in round]
        assert len(set(trials)) == len(trials)


@pytest.mark.parametrize("kind", ["asha", "hyperband", "bohb"])
def test_architectures_that_are_given_later_come_first_in_the_next_round(kind: Any) -> None:
    def made(first: Sequence[Architecture]) -> Strategy:
        return make_strategy(HyperbandConfig(kind=kind), Space(program), LOSS, 0, Path(), first=first)

    record = search(made([]), 2)
    tried = min((trial.architecture for trial in record[0]), key=lambda one: one["x"])
    given = [Architecture({"x": 0.0, STOP_AFTER: 1}), Architecture({**tried, STOP_AFTER: 27}), tried]
    strategy = made(given)
    strategy.resume(record)
    asked = strategy.ask(9)
    assert asked[:2] == given[:2]
    assert tried not in asked


def test_a_space_without_rungs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"asha, hyperband and bohb need evaluator\.stop_after: \{pick: \[\.\.\.\]\}"):
        strategy(build=lambda pick: pick.float("x", 0.0, 1.0))


def config(**values: Any) -> SearchConfig:
    data = {"target": "nasflow.evaluator.data:Digits"}
    evaluator = {"kind": "classification", "data": data, "epochs": 20, **values.pop("evaluator", {})}
    evaluator = {key: value for key, value in evaluator.items() if value is not None}
    return parse_config({"name": "s", "space": {"target": "s.py:build"}, "evaluator": evaluator, **values})


def test_the_config_gets_its_rungs() -> None:
    found = config(strategy={"kind": "asha", "reduction_factor": 2, "min_epochs": 3})
    assert found.evaluator.stop_after.pick == [3, 6, 12, 20]  # type: ignore[union-attr]
    assert parse_config(found.model_dump(mode="json")) == found, "as it is recorded"
    own = config(strategy={"kind": "hyperband"}, evaluator={"stop_after": {"pick": [5, 20]}})
    assert own.evaluator.stop_after.pick == [5, 20]  # type: ignore[union-attr]
    assert config().evaluator.stop_after is None


def test_a_first_rung_beyond_the_end_is_refused() -> None:
    assert config(strategy={"kind": "bohb", "min_epochs": 20}).evaluator.stop_after.pick == [20]  # type: ignore[union-attr]
    with pytest.raises(ConfigError, match=r"'min_epochs' is 21, more than evaluator\.epochs, 20"):
        config(strategy={"kind": "bohb", "min_epochs": 21})


def test_rungs_end_with_a_validation() -> None:
    assert config(strategy={"kind": "asha", "min_epochs": 4}, evaluator={"epochs": 12, "validate_every": 4})
    with pytest.raises(ConfigError, match=r"asha compares trials after 2 epochs, which evaluator\.validate_every, 4,"):
        config(strategy={"kind": "asha", "min_epochs": 2}, evaluator={"epochs": 12, "validate_every": 4})


def test_searched_epochs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy: asha needs a number as evaluator\.epochs"):
        config(strategy={"kind": "asha"}, evaluator={"epochs": {"int": [3, 9]}})


def test_trials_that_differ_in_their_end_have_one_seed() -> None:
    ends = [Architecture({"x": 0.5, STOP_AFTER: epochs}) for epochs in (1, 3)]
    assert trial_seed(7, ends[0]) == trial_seed(7, ends[1]) == trial_seed(7, Architecture({"x": 0.5}))


def test_programs_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"strategy: asha .* which evaluator\.kind command does not"):
        config(strategy={"kind": "asha"}, evaluator={"kind": "command", "command": ["true"], "data": None})


def new_ones(record: Sequence[Sequence[Trial]]) -> list[list[float]]:
    """By round, `x` of the architectures that began in it."""
    begun: dict[Architecture, int] = {}
    for number, trials in enumerate(record):
        for trial in trials:
            begun.setdefault(without_stop(trial.architecture), number)
    return [[one["x"] for one, began in begun.items() if began == number] for number in range(len(record))]


def test_bohb_begins_where_results_were_good() -> None:
    """Two thirds of what is new comes from the model, once a rung has ten results."""
    begun: dict[str, list[float]] = {"bohb": [], "hyperband": []}
    for kind, found in begun.items():
        for seed in range(6):
            late = new_ones(search(strategy(kind, seed), 8, per_round=12, seed=seed))[3:]
            found += [x for round in late for x in round]
    assert statistics.median(begun["bohb"]) < 0.35
    assert statistics.median(begun["hyperband"]) > 0.42


def test_bohb_learns_from_the_highest_rung_that_has_enough() -> None:
    """The loss after one epoch says the opposite of what later ones say."""

    def table(trial: Trial) -> Trial:
        x, epochs = trial.architecture["x"], trial.architecture[STOP_AFTER]
        return trial.model_copy(update={"metrics": {"loss": -x if epochs == 1 else 10 * x}})

    found: list[float] = []
    for seed in range(4):
        bohb = strategy("bohb", seed)
        record: list[list[Trial]] = []
        for round in range(8):
            asked = bohb.ask(12)
            record.append([table(trained(12 * round + place, one)) for place, one in enumerate(asked)])
            bohb.tell(record[-1])
        found += [x for late in new_ones(record)[4:] for x in late]
    assert statistics.median(found) < 0.4


def odd(pick: Pick) -> None:
    """Conditional choices of each kind, one with a single option, one with a hundred."""
    pick.float("x", 1e-4, 1.0, log=True)
    pick("one", ["only"])
    pick("many", list(range(100)))
    if pick("kind", ["a", "b"]) == "a":
        pick.int("width", 1, 1024, log=True)
    else:
        pick.subset("two", ["p", "q", "r"], 2)
        pick.subset("any", [None, True, 1.5], None)
    pick(STOP_AFTER, [1, 2, 4])


@pytest.mark.parametrize("ahead", [0, 2])
def test_bohb_goes_on_as_if_it_had_not_ended(ahead: int) -> None:
    """In an odd space, with trials that fail or have no finite score, asked ahead or not."""

    def result(number: int, one: Architecture) -> Trial:
        if number % 5 == 3:
            return trained(number, one, status=TrialStatus.FAILED, metrics={}, epochs=0)
        return trained(number, one, metrics={"loss": float("nan")}) if number % 7 == 2 else trained(number, one)

    def made() -> Strategy:
        return strategy("bohb", build=odd, reduction_factor=2)

    whole, record = made(), []
    for round in range(8):
        if round > ahead:
            whole.tell(record[round - 1 - ahead])
        record.append([result(10 * round + place, one) for place, one in enumerate(whole.ask(10))])
    for ended in (3, 6):
        resumed = made()
        for round in range(ended):
            if round > ahead:
                resumed.tell(record[round - 1 - ahead])
            if ahead:
                resumed.proposed(record[round])
        for round in range(ended, 8):
            if round > ahead:
                resumed.tell(record[round - 1 - ahead])
            assert resumed.ask(10) == [trial.architecture for trial in record[round]]
    trials = [trial.architecture for round in record for trial in round]
    assert len(set(trials)) == len(trials)
