"""Runs rounds of a search that overlap: `budget.rounds_ahead`."""

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextvars import copy_context

from ..budget import is_exhausted, rounds_left
from ..session.session import SearchSession

_LOOK = 0.5  # seconds between two looks at what may have changed


def run_overlapping(session: SearchSession, run_round: Callable[[int], None]) -> None:
    """Run the remaining rounds of a search, each in a thread. Raises the first error of one, once all have ended.

    Round n begins once the rounds up to n - 1 - `budget.rounds_ahead` have ended and round n - 1 has planned its
    batches.

    Args:
        session: of the search.
        run_round: runs one round until its end is on record; it raises InterruptedSearchError if that was cancelled.
    """

    def run(number: int) -> None:
        run_round(number)
        session.rounds.ended(number)

    ahead = session.config.budget.rounds_ahead
    begun: dict[int, Future[None]] = {}
    session.rounds.let_overlap()
    with ThreadPoolExecutor(ahead + 1, thread_name_prefix="nasflow-round") as threads:
        try:
            for number in rounds_left(session.study):
                _await_end(begun, number - 1 - ahead)
                session.refuse_interrupted()
                begun[number] = threads.submit(copy_context().run, run, number)
                while not (session.rounds.is_planned(number) or begun[number].done()):
                    session.rounds.wait(_LOOK)
                    _raise_error(begun)  # of an earlier round, on which this one may wait
                if is_exhausted(session.study, number):
                    break
                _await_end(begun, number - ahead)  # before the budget is looked at for the next
            _await_end(begun, max(begun, default=0))
        except BaseException:
            if not session.stop.is_set():  # the other rounds would run on
                session.end()
            raise


def _await_end(begun: dict[int, Future[None]], last: int) -> None:
    """Wait for the rounds up to `last`. Raises the error of any round that has one."""
    while unended := [future for number, future in begun.items() if number <= last and not future.done()]:
        wait(unended, timeout=_LOOK)
        _raise_error(begun)
    _raise_error(begun)


def _raise_error(begun: dict[int, Future[None]]) -> None:
    for future in begun.values():
        if future.done():
            future.result()
