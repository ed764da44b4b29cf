"""The contestants of `benchmarks.orchestration` run as many trials as they are told, and its figures are right."""

import json
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.commands import ContestantError
from benchmarks.orchestration.__main__ import Record, by_turns, contestants, flatness, parse, slope, table
from benchmarks.orchestration.contestants import (
    Contestant,
    NasflowPlain,
    OptunaBare,
    Outcome,
    rounds_of,
    search_config,
)
from nasflow.config.search import parse_config

pytestmark = pytest.mark.long


class Scripted(Contestant):
    """Gives what it is told to."""

    name, does = "scripted", "does what it is told"

    def run(self, folder: Path, trials: int) -> Outcome:
        raise NotImplementedError


def record(trials: int, walls: list[float], rounds: list[float] | None = None) -> Record:
    outcomes = [Outcome(wall, rounds or []) for wall in walls]
    count = len(walls)
    return Record(Scripted(), trials, outcomes, [2.0 * trials] * count, [1.0] * count, [0.5] * count)


def test_optuna_runs_as_many_trials(tmp_path: Path) -> None:
    assert OptunaBare(stored=True).run(tmp_path, 3).wall > 0
    assert (tmp_path / "optuna.db").exists()


def test_nasflows_trials_are_trained_in_rounds_without_prefect(tmp_path: Path) -> None:
    contestant = NasflowPlain(None, round=4, batch=2)  # type: ignore[arg-type]  # it needs no server
    outcome = contestant.run(tmp_path, 6)
    assert len(outcome.rounds) == 2
    assert all(seconds > 0 for seconds in outcome.rounds)
    assert len(list(tmp_path.glob("nasflow-runs/nothing/jobs/*/events.jsonl"))) == 2 + 2
    with pytest.raises(ContestantError, match="6 of 7"):
        rounds_of(tmp_path, 7)


@pytest.mark.parametrize(("trials", "rounds", "jobs_per_slot"), [(2, 1, 1), (100, 1, 4), (1000, 8, 4), (5000, 40, 4)])
def test_batches_have_sixteen_trials_at_most(tmp_path: Path, trials: int, rounds: int, jobs_per_slot: int) -> None:
    config = parse_config(search_config(tmp_path, trials, round=128, batch=16))
    assert (config.budget.rounds, config.merge.jobs_per_slot) == (rounds, jobs_per_slot)
    assert config.budget.rounds * config.budget.trials_per_round >= trials == config.budget.trials


def test_a_trial_more_is_told_from_start_and_end() -> None:
    few, many = record(100, [12.0, 11.0, 13.0]), record(1000, [30.0, 31.0, 20.0])
    assert slope(few, many) == pytest.approx(0.02)
    found = many.figures()
    assert (found["wall_per_trial"], found["cpu_per_trial"]) == (0.03, 2.0)
    json.dumps(found)
    console = Console(width=200)
    with console.capture() as capture:
        console.print(table({"scripted": [few, many], "other": []}, {"other": "no such package"}))
    assert "20.0" in capture.get()
    assert "failed" in capture.get()


def test_flat_is_the_first_against_the_last_rounds() -> None:
    said = flatness(record(1000, [1.0, 1.0], [0.010, 0.012, 0.5, 0.5, 0.5, 0.5, 0.020, 0.022]))
    assert "11.0 ms a trial in the first 2 of 8 rounds, 21.0 ms in the last 2" in said


def test_contestants_take_turns() -> None:
    assert by_turns([[1, 2, 3], [4], [5, 6]]) == [[1, 4, 5], [2, 6], [3]]  # type: ignore[list-item]
    options = parse(["--contestants", "nni", "optuna-memory", "--nni-trials", "2", "5"])
    assert [counts for _, counts in contestants(options, None)] == [[2, 5], options.trials]  # type: ignore[arg-type]
