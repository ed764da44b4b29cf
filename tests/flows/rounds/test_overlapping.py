"""Errors of rounds that overlap end their search, or let it go on; they never leave a round waiting."""

import threading
from collections.abc import Callable

import pytest

from nasflow.errors import InterruptedSearchError, StudyError
from nasflow.flows.rounds.overlapping import run_overlapping
from nasflow.flows.session.session import SearchSession
from nasflow.space.architecture import Architecture
from nasflow.study.records import RoundState
from tests.flows.rounds.test_tasks import opened

BOUND = 30  # seconds, of which a search that does not hang needs a part of one


@pytest.fixture
def session(tmp_path, monkeypatch):
    """A session of two rounds, of which the second begins while the first trains."""
    monkeypatch.chdir(tmp_path)
    with opened("ahead", budget={"rounds": 2, "trials_per_round": 1, "rounds_ahead": 1}) as session:
        yield session


def run(session: SearchSession, run_round: Callable[[int], None]) -> BaseException | None:
    """The error with which the rounds end. A search that hangs fails the test, and ends."""
    errors: list[BaseException] = []

    def run_all() -> None:
        try:
            run_overlapping(session, run_round)
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run_all)
    thread.start()
    thread.join(BOUND)
    hangs = thread.is_alive()
    session.interrupt()
    thread.join()
    assert not hangs
    return errors[0] if errors else None


def test_an_error_after_the_end_of_a_round_is_on_record_lets_the_next_round_end(session):
    def run_round(number: int) -> None:
        try:
            with session.rounds.running(number):
                session.study.begin_round(number)
                session.study.submit_trials(number, [Architecture({"kind": "ok", "width": 8})])
                session.rounds.planned(number)
                session.await_earlier_rounds(number)
                session.study.end_round(number, RoundState.COMPLETED)
                raise StudyError("the leaderboard can't be shown")
        except StudyError:  # stays in the round's flow run
            return

    assert run(session, run_round) is None
    assert [record.state for record in session.study.rounds()] == [RoundState.COMPLETED] * 2


def test_an_error_ends_the_search_while_the_next_round_has_no_trials(session):
    waits = threading.Event()

    def run_round(number: int) -> None:
        with session.rounds.running(number):
            if number == 0:
                session.rounds.planned(number)
                waits.wait(BOUND)
                raise StudyError("the store is gone")
            waits.set()
            with pytest.raises(InterruptedSearchError):
                session.await_earlier_rounds(number)

    assert str(run(session, run_round)) == "the store is gone"
