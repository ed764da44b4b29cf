"""The search flow."""

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed

from nasflow.config import Budget, SearchConfig
from nasflow.errors import InterruptedSearchError, TrialError
from nasflow.study.records import RoundState

from .record import show_search
from .recurring import config_of_this_run
from .remaining import rounds_left
from .result import SearchResult
from .round_flow import sampling_round
from .session import SearchSession, search_session


@flow(name="nas-search", flow_run_name="{config.name}")
def search(config: SearchConfig, budget: Budget | None = None) -> SearchResult:
    """Run a search to the end of its budget, or take it up where an earlier run left it.

    Called in a script or a notebook it gives the SearchResult.

    Args:
        config: everything about the search
        budget: when it ends, in place of the config's budget

    Raises:
        UserError: the config can't work, or does not match the study of its name.
        TrialError: not one trial could be scored.
    """
    config = config_of_this_run(config, budget)
    with search_session(config) as session, interruptible(session):
        session.flow_began = time.monotonic()
        try:
            for number in rounds_left(session.study):
                session.refuse_interrupted()
                state = _run_round(session, number)
                if state.is_cancelled():
                    return _final(Cancelled(message=state.message))
                if not session.study.trials(round=number, limit=1):
                    break  # the space is exhausted
        except InterruptedSearchError as error:
            return _final(Cancelled(message=str(error)))
        best = session.study.leaderboard(1)
        if not best:
            raise TrialError(f"no trial of study '{config.name}' could be scored: nasflow show {config.name} says why")
        show_search(session)
        return _final(Completed(message=f"best is trial {best[0].number}", data=SearchResult(config)))


def _run_round(session: SearchSession, number: int) -> State[Any]:
    """Run a round until its end is on record, or it is cancelled. Raises what ended it otherwise.

    When Prefect runs the search's flow run again, it counts its subflows and takes the nth for the nth of before, whose
    state it may give back although that was another round.
    """
    while True:
        state = sampling_round(session.config, number, return_state=True)
        ended = {record.number for record in session.study.rounds() if record.state is not RoundState.RUNNING}
        if number in ended or state.is_cancelled():
            return state
        if not state.is_completed():
            state.result()


def _final(state: Any) -> SearchResult:
    """The flow's final state, which Prefect unwraps for who called the flow: its data, or an error."""
    return cast(SearchResult, state)


@contextmanager
def interruptible(session: SearchSession) -> Iterator[None]:
    """Within it, Ctrl-C ends the session in good order: finished epochs are kept. A second one ends it at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def on_sigint(number: int, frame: FrameType | None) -> None:
        if session.stop.is_set():
            raise KeyboardInterrupt
        session.interrupt()

    before = signal.signal(signal.SIGINT, on_sigint)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
