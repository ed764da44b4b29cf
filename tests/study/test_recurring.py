"""Which study a run of a deployment works on, on both kinds of store."""

import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta, timezone

import pytest

from nasflow.config.search import Budget, SearchConfig
from nasflow.errors import ConfigError
from nasflow.evaluator.candidate import candidate_space
from nasflow.recurring import config_of_run, runs_of_study
from nasflow.space.architecture import Architecture
from nasflow.study.records import AttemptState, FinalRecord, RoundState
from nasflow.study.study import Study

MakeConfig = Callable[..., SearchConfig]
AT = datetime(2026, 11, 21, 2, 0, tzinfo=UTC)


def search(config: SearchConfig, rounds: int, scores: list[float]) -> list[dict[str, object]]:
    """A study on record with `rounds` more rounds, the first of them scored so; the architectures of that one."""
    study = Study.open(config)
    space = candidate_space(config.space, config.evaluator, config.base_dir)
    begun = len(study.rounds())
    tried = []
    for number in range(begun, begun + rounds):
        study.begin_round(number)
        rng = random.Random(f"{config.name} {number}")
        for trial in study.submit_trials(number, [space.sample(rng) for _ in scores]):
            tried.append(dict(trial.architecture))
            attempt = study.new_attempt(trial.number)
            study.start_attempt(attempt.id, f"job-{attempt.id}")
            score = scores[trial.number % len(scores)] - number
            final = FinalRecord(trial.number, {"val_accuracy": score, "parameters": 1.0}, 4)
            study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [final])
        study.end_round(number, RoundState.COMPLETED)
    study.close()
    return tried


def test_each_run_has_a_study_of_its_own_and_finds_it_again(make_config: MakeConfig) -> None:
    config = make_config(recurring={"study": "new"}, begin_with=[{"a": 1}])
    first = config_of_run(config, "run-1", AT)
    assert first.name == "digits-20261121-0200"
    assert first.recurring is None
    assert first.begin_with == config.begin_with
    assert first.budget == config.budget
    Study.open(first).close()
    assert config_of_run(config, "run-1", AT + timedelta(days=1)) == first  # retried, resumed
    assert config_of_run(config, "run-2", AT).name == "digits-20261121-0200-2"
    assert config_of_run(config, "run-3", AT + timedelta(minutes=1)).name == "digits-20261121-0201"
    assert runs_of_study(config.store, first.name) == ["run-1"]


def test_the_date_is_in_utc(make_config: MakeConfig) -> None:
    at = datetime(2026, 11, 21, 1, 0, tzinfo=timezone(timedelta(hours=2)))
    assert config_of_run(make_config(recurring={}), "run", at).name == "digits-20261120-2300"


def test_runs_of_the_same_minute_share_no_study(make_config: MakeConfig) -> None:
    config = make_config(recurring={"study": "new"})
    with ThreadPoolExecutor(8) as pool:
        names = list(pool.map(lambda run: config_of_run(config, f"run-{run}", AT).name, range(8)))
    assert len(set(names)) == 8


def test_a_study_of_that_name_that_no_run_began_is_not_taken(make_config: MakeConfig) -> None:
    Study.open(make_config(name="digits-20261121-0200")).close()
    assert config_of_run(make_config(recurring={}), "run", AT).name == "digits-20261121-0200-2"


def test_continue_gives_each_run_the_budget_anew(make_config: MakeConfig) -> None:
    budget = {"rounds": 2, "trials_per_round": 3, "trials": 6, "hours": 1, "rounds_ahead": 1, "on_timeout": "stop"}
    config = make_config(recurring={"study": "continue"}, budget=budget)
    first = config_of_run(config, "run-1", AT)
    assert (first.name, first.budget, first.recurring) == ("digits", Budget(**budget), None)
    search(first, 2, [0.1, 0.2, 0.3])
    second = config_of_run(config, "run-2", AT)
    assert (second.budget.rounds, second.budget.trials) == (4, 12)
    assert (second.budget.rounds_ahead, second.budget.on_timeout) == (1, "stop")
    assert second.budget.hours is not None
    assert 1 < second.budget.hours < 1.1
    search(second, 1, [0.1, 0.2, 0.3])
    assert config_of_run(config, "run-2", AT) == second  # retried when it was half way through
    assert config_of_run(config, "run-1", AT) == first
    assert config_of_run(config, "run-3", AT).budget.rounds == 5
    assert sorted(runs_of_study(config.store, "digits")) == ["run-1", "run-2", "run-3"]


def test_a_round_cut_short_is_not_counted(make_config: MakeConfig) -> None:
    config = make_config(recurring={"study": "continue"}, budget={"rounds": 2})
    search(config, 1, [0.5])
    study = Study.open(config)
    study.begin_round(1)
    study.close()
    assert config_of_run(config, "run", AT).budget.rounds == 3


def test_a_warm_start_begins_with_the_best_of_earlier_studies(make_config: MakeConfig) -> None:
    config = make_config(recurring={"study": "warm_start", "best": 3})
    first = config_of_run(config, "run-1", AT)
    assert first.begin_with == []
    by_hand = search(make_config(), 1, [0.2, 0.9])
    dated = search(first, 1, [0.8, 0.1])
    search(make_config(name="digits-other"), 1, [0.99])
    search(make_config(name="digits-20261101-0200", objectives=[{"metric": "val_loss"}]), 1, [0.99])
    second = config_of_run(config, "run-2", AT + timedelta(days=1))
    assert second.name == "digits-20261122-0200"
    assert second.begin_with == [by_hand[1], dated[0], by_hand[0]]
    Study.open(second).close()
    search(make_config(name="digits-20261101-0300"), 1, [1.0])
    assert config_of_run(config, "run-2", AT) == second  # what it began with does not change


def test_a_warm_start_takes_what_fits_the_space_as_it_is_now(make_config: MakeConfig) -> None:
    config = make_config(recurring={"study": "warm_start", "best": 2})
    tried = search(make_config(), 1, [0.9, 0.8, 0.7])
    own = search(make_config(name="other"), 1, [0.5])
    study = Study.open(make_config(name="digits-20261101-0200"))
    study.close()
    changed = config.model_copy(update={"begin_with": own})
    assert config_of_run(changed, "run-1", AT).begin_with == [*own, *tried[:2]]
    smaller = make_config(
        recurring={"study": "warm_start"}, space={"target": "nasflow.space.ready:cell_cnn", "params": {"classes": 10}}
    )
    assert config_of_run(smaller, "run-2", AT).begin_with == []


def test_a_warm_start_begins_each_architecture_once_and_at_the_first_rung(make_config: MakeConfig) -> None:
    asha = make_config(strategy={"kind": "asha", "reduction_factor": 2})
    config = make_config(strategy={"kind": "asha", "reduction_factor": 2}, recurring={"study": "warm_start", "best": 2})
    space = candidate_space(asha.space, asha.evaluator, asha.base_dir)
    one, other, own = ({**space.sample(random.Random(seed)), "stop_after": 1} for seed in range(3))
    study = Study.open(asha)
    study.begin_round(0)
    tried = [Architecture({**values, "stop_after": until}) for values in (one, other, own) for until in (1, 2, 4)]
    for trial in study.submit_trials(0, tried):
        attempt = study.new_attempt(trial.number)
        study.start_attempt(attempt.id, "job")
        final = FinalRecord(trial.number, {"val_accuracy": 1 - trial.number / 10, "parameters": 1.0}, 4)
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [final])
    study.end_round(0, RoundState.COMPLETED)
    study.close()
    assert config_of_run(config, "run-1", AT).begin_with == [one, other]
    changed = config.model_copy(update={"begin_with": [{**one, "stop_after": 2}]})
    assert config_of_run(changed, "run-2", AT).begin_with == [{**one, "stop_after": 2}, other, own]


def test_without_the_section_the_config_stays(make_config: MakeConfig) -> None:
    config = make_config()
    assert config_of_run(config, "run", AT) is config


def test_a_name_leaves_room_for_the_date(make_config: MakeConfig) -> None:
    make_config(name="x" * 76, recurring={"study": "new"})
    make_config(name="x" * 100, recurring={"study": "continue"})
    with pytest.raises(ConfigError, match="'name' gets a date, so it may have 76 characters at most"):
        make_config(name="x" * 77, recurring={"study": "new"})
