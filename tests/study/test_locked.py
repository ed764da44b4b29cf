"""Databases that others have locked, and several searches that write to one database at once."""

import multiprocessing
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from sqlalchemy import func, make_url, select, text

from nasflow.config.search import SearchConfig
from nasflow.errors import StudyError
from nasflow.space.architecture import Architecture
from nasflow.study.database import store as store_module
from nasflow.study.database.store import AttemptRow, EpochRow, MemberRow, Store, TrialRow
from nasflow.study.lease import Lease
from nasflow.study.records import AttemptState, EpochRecord, FinalRecord
from nasflow.study.study import Study
from nasflow.trial import TrialStatus

MakeConfig = Callable[..., SearchConfig]
TRIALS, A_JOB, EPOCHS = 40, 4, 3
A_WHILE = 6.0  # seconds: more than a driver waits that was not told to

_LOCKER = """
import sqlite3, sys, time
url, seconds, begin = sys.argv[1:]
if begin.startswith("BEGIN"):
    database = sqlite3.connect(url, isolation_level=None)
else:
    import psycopg
    database = psycopg.connect(url)
database.execute(begin)
print("locked", flush=True)
time.sleep(float(seconds))
database.rollback()
"""


@contextmanager
def locked(url: str, seconds: float, begin: str) -> Iterator[None]:
    """Another process locks the database for so long."""
    command = [sys.executable, "-c", _LOCKER, url, str(seconds), begin]
    locker = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert locker.stdout is not None and locker.stdout.readline() == "locked\n"
        yield
    finally:
        locker.kill()
        locker.communicate()


def lock_of(store_url: str) -> tuple[str, str]:
    """How to reach a database without nasflow, and what locks it."""
    if store_url.startswith("sqlite"):
        return str(make_url(store_url).database), "BEGIN EXCLUSIVE"
    return store_url, "LOCK TABLE studies, trials, epochs, leases IN ACCESS EXCLUSIVE MODE"


def test_a_locked_database_is_waited_for(make_config: MakeConfig, store_url: str) -> None:
    study = Study.open(make_config(), Lease())
    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": 1})])
    url, begin = lock_of(store_url)
    with locked(url, A_WHILE, begin):
        began = time.monotonic()
        study.record_epochs([EpochRecord(0, 1, {})])
        assert time.monotonic() - began > A_WHILE / 2
    assert [record.epoch for record in study.epochs([0])[0]] == [1]
    study.close()


def test_a_database_locked_for_half_a_minute_is_waited_for_by_all_statements(store_url: str) -> None:
    store = Store(store_url, create=True)
    ask = (
        "PRAGMA busy_timeout" if store_url.startswith("sqlite") else "SELECT setting FROM pg_settings WHERE name = '{}'"
    )
    with store.read() as session:
        assert int(session.scalar(text(ask.format("lock_timeout")))) >= 60_000  # milliseconds
        if not store_url.startswith("sqlite"):
            stopped = int(session.scalar(text(ask.format("idle_in_transaction_session_timeout"))))
            assert 0 < stopped < store_module.BUSY_SECONDS * 1000, "who waits outlasts who stands still"
    store.close()


def test_a_database_that_stays_locked_is_one_sentence(
    make_config: MakeConfig, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Study.open(make_config()).close()
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 1)
    study = Study.open(make_config())
    url, begin = lock_of(store_url)
    with locked(url, 60, begin), pytest.raises(StudyError, match=r"can't be used: .*lock"):
        study.begin_round(0)
    study.close()


def test_too_few_connections_are_waited_for_as_long_and_are_one_sentence(
    store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store(store_url, create=True).close()
    monkeypatch.setattr(store_module, "BUSY_SECONDS", 1)
    store = Store(store_url)
    with ExitStack() as stack:
        for _ in range(15):
            stack.enter_context(store.read()).execute(text("SELECT 1"))
        with pytest.raises(StudyError, match="can't be used: no connection free in 1 s"), store.read() as session:
            session.execute(text("SELECT 1"))
        with pytest.raises(StudyError, match="no connection free"), store.write("digits") as session:
            session.execute(text("SELECT 1"))
    with store.write("digits"):
        pass
    store.close()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_a_new_database_that_another_process_is_making_is_waited_for(make_config: MakeConfig, store_url: str) -> None:
    """It is not in WAL mode yet, and SQLite refuses to switch at once, without its own patience."""
    file, _ = lock_of(store_url)
    sqlite3.connect(file).execute("CREATE TABLE t (x)").connection.close()
    with locked(file, 1.0, "BEGIN IMMEDIATE"):
        Study.open(make_config()).close()


@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
def test_readers_do_not_wait_for_a_writer(make_config: MakeConfig, store_url: str) -> None:
    study = Study.open(make_config())
    file, _ = lock_of(store_url)
    with locked(file, 60, "BEGIN IMMEDIATE"):
        assert study.leaderboard(1) == study.trials() == []
        Study.load(store_url, "digits").close()
    study.close()


def _search(config: SearchConfig, moment: float) -> None:
    """What a controller writes, from its start to its end."""
    time.sleep(max(0.0, moment - time.time()))
    lease = Lease(seconds=0.6)  # renewed ten times a second, into the bargain
    study = Study.open(config, lease)
    with lease.kept(lambda: None):
        study.begin_round(0)
        study.submit_trials(0, [Architecture({"width": width}) for width in range(TRIALS)])
        for batch in study.plan_batches(0, [range(n, n + A_JOB) for n in range(0, TRIALS, A_JOB)]):
            study.start_attempt(batch.id, f"{study.name}-{batch.number}", {})
            for epoch in range(1, EPOCHS + 1):
                value = {"val_accuracy": len(study.name) + epoch / 10}
                study.record_epochs([EpochRecord(n, epoch, value, 0.1, batch.id) for n in batch.members])
            finals = [FinalRecord(n, value, EPOCHS) for n in batch.members]
            study.record_outcome(batch.id, AttemptState.SUCCEEDED, finals)
        study.settle_replays(0)
    study.close()


def test_two_searches_write_to_one_database_at_once(make_config: MakeConfig, store_url: str) -> None:
    names = ["a", "longer"]
    with multiprocessing.get_context("spawn").Pool(len(names)) as pool:
        moment = time.time() + 1.5
        pool.starmap(_search, [(make_config(name=name), moment) for name in names], chunksize=1)
    for name in names:
        study = Study.load(store_url, name)
        assert study.counts()[TrialStatus.TRAINED] == TRIALS
        attempts = study.attempts()
        assert [attempt.job_id for attempt in attempts] == [f"{name}-{n}" for n in range(TRIALS // A_JOB)]
        assert [number for attempt in attempts for number in attempt.members] == list(range(TRIALS))
        for number, records in study.epochs(range(TRIALS)).items():
            assert [record.epoch for record in records] == list(range(1, EPOCHS + 1))
            assert {record.attempt_id for record in records} == {attempts[number // A_JOB].id}
            assert records[-1].metrics == study.trial(number).metrics == {"val_accuracy": len(name) + EPOCHS / 10}
        study.close()
    store = Store(store_url)
    with store.read() as session:
        rows = [
            session.scalar(select(func.count()).select_from(kind))
            for kind in (TrialRow, EpochRow, MemberRow, AttemptRow)
        ]
    store.close()
    assert rows == [2 * TRIALS, 2 * TRIALS * EPOCHS, 2 * TRIALS, 2 * TRIALS // A_JOB]


def test_no_transaction_is_open_while_a_controller_works(study: Study) -> None:
    def idle() -> bool:
        pool: Any = study._store._engine.pool
        return bool(pool.checkedout() == 0)

    study.begin_round(0)
    study.submit_trials(0, [Architecture({"width": 1})])
    study.end_round(0, store_module.RoundState.COMPLETED)
    assert idle()
    study.fail_trial(0, "it failed")
    for trials in study.history():
        assert len(trials) == 1 and idle()
    assert study.leaderboard(5) == [] and study.rounds() and study.attempts() == [] and idle()
