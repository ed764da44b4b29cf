"""ASHA and Hyperband on tables of results: who is promoted, to which rung, and what that costs."""

import random
from collections import Counter
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


def test_a_space_without_rungs_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"asha and hyperband need evaluator\.stop_after: \{pick: \[\.\.\.\]\}"):
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
