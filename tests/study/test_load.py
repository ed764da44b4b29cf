"""Studies under load: many writers, a writer killed while it writes, ten thousand trials."""

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import pytest
from sqlalchemy import Engine, event, insert, literal, select, text

from nasflow.config.search import SearchConfig
from nasflow.space.architecture import Architecture
from nasflow.study.database.store import EpochRow, TrialRow
from nasflow.study.lease import Lease
from nasflow.study.records import AttemptState, EpochRecord, FinalRecord, RoundState
from nasflow.study.study import Study
from nasflow.trial import Trial, TrialStatus

MakeConfig = Callable[..., SearchConfig]


def _tell(study: Study, numbers: range) -> None:
    """What a controller's follower of jobs does, for these trials."""
    for number in numbers:
        attempt = study.new_attempt(number)
        study.start_attempt(attempt.id, f"job-{number}", {"number": number})
        for epoch in (1, 2):
            study.record_epochs([EpochRecord(number, epoch, {"val_accuracy": epoch / 10}, 0.1, attempt.id)])
        study.record_outcome(attempt.id, AttemptState.SUCCEEDED, [FinalRecord(number, {"val_accuracy": 0.2}, 2)])


def _tell_in_process(config: SearchConfig, start: int, stop: int) -> None:
    study = Study.open(config)
    _tell(study, range(start, stop))
    study.close()


def _assert_whole(study: Study) -> None:
    """Every trial is either untouched, or in flight, or scored with all that belongs to it."""
    trials = study.trials()
    epochs = study.epochs(trial.number for trial in trials)
    all_attempts = study.attempts()
    for trial in trials:
        attempts = [attempt for attempt in all_attempts if trial.number in attempt.members]
        assert [row.epoch for row in epochs[trial.number]] == list(range(1, trial.epochs + 1))
        assert trial.status.scored == bool(trial.metrics)
        if trial.status.scored:
            assert trial.epochs == 2 and attempts[-1].state is AttemptState.SUCCEEDED
        if trial.status is TrialStatus.RUNNING:
            assert attempts[-1].state is AttemptState.RUNNING and attempts[-1].handle == {"number": trial.number}
        assert sum(not attempt.state.finished for attempt in attempts) <= 1


def _new_study(config: SearchConfig, trials: int) -> Study:
    study = Study.open(config)
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": width}) for width in range(trials)])
    return study


def test_threads_and_processes_write_side_by_side(make_config: MakeConfig) -> None:
    study = _new_study(make_config(), 24)
    with multiprocessing.get_context("spawn").Pool(2) as pool, ThreadPoolExecutor(4) as threads:
        elsewhere = pool.starmap_async(_tell_in_process, [(make_config(), 12, 18), (make_config(), 18, 24)])
        here = [threads.submit(_tell, study, range(start, start + 3)) for start in (0, 3, 6, 9)]
        for future in here:
            future.result()
        elsewhere.get()
    assert study.counts()[TrialStatus.TRAINED] == 24
    attempts = study.attempts()
    assert sorted(attempt.number for attempt in attempts) == list(range(24))  # none was numbered twice
    _assert_whole(study)
    study.close()


def test_threads_that_ask_for_the_same_attempt_get_one(make_config: MakeConfig) -> None:
    study = _new_study(make_config(), 2)
    with ThreadPoolExecutor(8) as threads:
        attempts = list(threads.map(study.new_attempt, [0, 1] * 8))
    assert len({attempt.id for attempt in attempts}) == 2
    study.close()


_WRITER = """
import sys
from nasflow.study.study import Study
from tests.study.test_load import _tell
study = Study.load(sys.argv[1], "digits")
for number in range(int(sys.argv[2]), 1000):
    print(number, flush=True)
    _tell(study, range(number, number + 1))
"""


def test_a_writer_killed_at_any_moment_leaves_a_whole_study(make_config: MakeConfig, store_url: str) -> None:
    study = _new_study(make_config(), 1000)
    chance = random.Random(0)
    done = 0
    for _ in range(3):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, store_url, str(done)],
            stdout=subprocess.PIPE,
            text=True,
            cwd=Path(__file__).parents[2],
        )
        assert writer.stdout is not None
        assert [int(writer.stdout.readline()) for _ in range(4)] == list(range(done, done + 4))
        time.sleep(chance.uniform(0, 0.03))
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
        _assert_whole(study)  # and it can be read at once
        done = study.counts()[TrialStatus.TRAINED]
        assert done > 0
    _tell(study, range(done, done + 3))
    _assert_whole(study)
    if store_url.startswith("sqlite"):
        with study._store.read() as session:
            assert session.scalar(text("PRAGMA integrity_check")) == "ok"
            assert session.scalar(text("PRAGMA journal_mode")) == "wal"
    study.close()


TRIALS, ROUNDS, EPOCHS = 10_000, 20, 3


def _fill(study: Study) -> None:
    """Ten thousand trained trials, by the database's own bulk insert."""
    for number in range(ROUNDS):
        study.begin_round(number)
        study.end_round(number, RoundState.COMPLETED)
    scores = [random.Random(n).random() for n in range(TRIALS)]
    trials = [
        {
            "study_id": study._id, "number": n, "round": n * ROUNDS // TRIALS, "seed": n,
            "digest": Architecture({"width": n}).digest, "architecture": {"width": n}, "status": TrialStatus.TRAINED,
            "metrics": {"val_accuracy": score, "parameters": float(n)}, "value": score, "parameters": float(n),
            "epochs": EPOCHS,
        }
        for n, score in enumerate(scores)
    ]  # fmt: skip
    with study._store.write("fill") as session:
        session.execute(insert(TrialRow), trials)
        for epoch in range(1, EPOCHS + 1):
            at = literal(datetime.now(UTC), EpochRow.recorded_at.type)
            of_all = select(TrialRow.id, literal(epoch), TrialRow.metrics, literal(0.1), at)
            session.execute(
                insert(EpochRow).from_select(["trial_id", "epoch", "metrics", "seconds", "recorded_at"], of_all)
            )


def _statements(study: Study | None, call: Callable[[], object]) -> list[str]:
    """What is sent to the study's database, or to all if none is named."""
    target = Engine if study is None else study._store._engine
    found: list[str] = []

    def note(connection: object, cursor: object, statement: str, *rest: object) -> None:
        found.append(statement)

    event.listen(target, "before_cursor_execute", note)
    try:
        call()
    finally:
        event.remove(target, "before_cursor_execute", note)
    return [statement for statement in found if not statement.startswith("BEGIN")]


@pytest.fixture
def large(make_config: MakeConfig) -> Study:
    study = Study.open(make_config(objectives=[{"metric": "val_accuracy"}]))
    _fill(study)
    return study


def test_of_ten_thousand_trials_few_are_read_at_a_time(large: Study, make_config: MakeConfig) -> None:
    study = Study.open(make_config())
    board = study.leaderboard(10)
    page = study.trials(limit=50, offset=9_000)
    counts = study.counts()
    scores = {n: random.Random(n).random() for n in range(TRIALS)}
    assert [t.number for t in board] == sorted(scores, key=lambda n: -scores[n])[:10]
    assert [t.number for t in page] == list(range(9_000, 9_050)) and counts[TrialStatus.TRAINED] == TRIALS
    assert len(_statements(study, lambda: study.leaderboard(10))) == 1
    assert "LIMIT" in _statements(study, lambda: study.leaderboard(10))[0]
    assert len(_statements(study, lambda: study.trials(limit=50))) == 1
    history: list[list[Trial]] = []
    study.begin_round(ROUNDS)
    fresh = [Architecture({"width": TRIALS + n}) for n in range(100)] + [Architecture({"width": 5})]
    assert len(_statements(study, lambda: study.submit_trials(ROUNDS, fresh))) < 12
    assert study.trials(round=ROUNDS)[-1].replayed_from == 5
    assert len(_statements(study, lambda: history.extend(study.history()))) == 1 + ROUNDS // 10
    assert len(_statements(study, lambda: next(study.history()))) == 2  # a few rounds at a time are in memory
    assert [len(trials) for trials in history] == [TRIALS // ROUNDS] * ROUNDS
    study.close()
    large.close()


def test_a_search_starts_on_a_large_study_with_as_many_statements_as_on_a_new_one(
    large: Study, make_config: MakeConfig
) -> None:
    def start(name: str) -> None:
        lease = Lease()
        study = Study.open(make_config(name=name), lease)
        with lease.kept(lambda: None):
            study.begin_round(ROUNDS)
            assert study.controller() and study.trials(round=ROUNDS) == study.batches(ROUNDS) == []
        study.close()

    Study.open(make_config(name="new")).close()
    assert _statements(None, lambda: start("digits")) == _statements(None, lambda: start("new"))
    large.close()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)  # nothing here depends on the database
def test_ten_thousand_trials_of_two_objectives_are_ranked(make_config: MakeConfig) -> None:
    objectives = [{"metric": "val_accuracy"}, {"metric": "parameters", "direction": "minimize"}]
    study = Study.open(make_config(objectives=objectives))
    _fill(study)
    board = study.leaderboard(5)
    scores = [random.Random(n).random() for n in range(TRIALS)]
    front = [n for n in range(TRIALS) if scores[n] > max(scores[:n], default=-1)]
    assert [t.number for t in board] == sorted(front, key=lambda n: -scores[n])[:5]
    study.close()
