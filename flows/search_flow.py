"""The search flow."""

import time
from typing import Any, cast

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed

from nasflow.config.search import Budget, SearchConfig
from nasflow.errors import InterruptedSearchError, RefusedError, TrialError
from nasflow.study.records import RoundState

from .budget import TIME_IS_OVER, rounds_left, unfinished_text, untested
from .result import SearchResult
from .rounds.overlapping import run_overlapping
from .rounds.record import show_search
from .rounds.round_flow import sampling_round
from .run_config import config_of_this_run
from .server.flow_calls import with_server
from .session.control import controlled, end_cancelling, suspendable
from .session.session import SearchSession, search_session
from .session.signals import interruptible
from .session.time_limit import time_limited
from .task_threads import UNLIMITED
from .ui.heartbeats import without_engine_heartbeats
from .winner import score_best


@with_server
@flow(
    name="nas-search",
    description="Search for the best architecture, round by round; resumes a study of the same name.",
    flow_run_name="{config.name}",
    task_runner=UNLIMITED,
)
def search(config: SearchConfig, budget: Budget | None = None) -> SearchResult:
    """Run a search to the end of its budget, or resume it where an earlier run stopped.

    Returns the SearchResult when called in a script or a notebook.

    Args:
        config: everything about the search
        budget: when it ends; the keys that are set in it replace those of the config's budget

    Raises:
        UserError: the config can't work, or does not match the study of its name.
        TrialError: not one trial could be scored.
    """
    config = config_of_this_run(config, budget)
    with (
        suspendable(config),
        search_session(config) as session,
        interruptible(lambda: session.interrupted, session.interrupt),
        controlled(session) as control,
    ):
        session.flow_began = time.monotonic()
        while True:
            try:
                if not session.time_is_over:
                    with time_limited(session):
                        run_rounds(session)
                score_best(session)
                break
            except InterruptedSearchError as error:
                if session.time_is_over and untested(session.study) is None:
                    break
                if not control.resumed():
                    return _final(Cancelled(message=str(error)))
        best = session.study.leaderboard(1)
        if not best:
            raise TrialError(f"no trial of study '{config.name}' could be scored: nasflow show {config.name} says why")
        show_search(session)
        message = f"best is trial {best[0].number}{unfinished_text(session.study)}"
        return _final(Completed(message=message, data=SearchResult(config)))


def run_rounds(session: SearchSession) -> None:
    """Run the remaining rounds. Raises InterruptedSearchError if a round was cancelled or the search is to stop."""
    if session.config.budget.rounds_ahead:
        run_overlapping(session, lambda number: _run_round(session, number))
        return
    for number in rounds_left(session.study):
        session.refuse_interrupted()
        _run_round(session, number)
        if not session.study.trials(round=number, limit=1):
            return  # the space is exhausted


def _run_round(session: SearchSession, number: int) -> None:
    """Run a round until its end is on record, and have the strategy learn from it.

    Raises:
        InterruptedSearchError: the round was cancelled.
    """
    state = _final_state(session, number)
    if state.is_cancelled():
        if session.time_is_over:
            session.study.end_round(number, RoundState.COMPLETED, TIME_IS_OVER)
        raise InterruptedSearchError(state.message)
    if session.study.trials(round=number, limit=1):
        session.proposals.ended(number)


def _final_state(session: SearchSession, number: int) -> State[Any]:
    """Run a round until its end is on record or it is cancelled. Raises any other error that ended it.

    When Prefect runs the search's flow run again, it matches subflows by their order, and may return the state of an
    earlier subflow that was a different round.
    """
    while True:
        with without_engine_heartbeats():
            state = end_cancelling(sampling_round(session.config, number, return_state=True))
        if state.is_failed() and isinstance(error := state.result(raise_on_failure=False), RefusedError):
            raise error  # the round has recorded its end
        ended = {record.number for record in session.study.rounds() if record.state is not RoundState.RUNNING}
        if number in ended or state.is_cancelled():
            return state
        if not state.is_completed():
            state.result()


def _final(state: Any) -> SearchResult:
    """The flow's final state. Prefect unwraps it for the flow's caller into its data or an error."""
    return cast(SearchResult, state)
