"""The rounds that a study still has to run, according to its record."""

from collections.abc import Iterator

from nasflow.study.records import RoundRecord, RoundState
from nasflow.study.study import Study
from nasflow.trial import TrialStatus

TIME_IS_OVER = "budget.hours is over"


def rounds_left(study: Study) -> Iterator[int]:
    """Yield the numbers of the rounds to run: unfinished rounds, and new ones while the budget lasts.

    Once the hours are over, unfinished rounds are left out as well if the search is to stop then.
    """
    budget = study.config.budget
    waiting = study.trials((TrialStatus.SUBMITTED, TrialStatus.RUNNING))
    open_rounds = {trial.round for trial in waiting if trial.replayed_from is None}  # some may come from a killed retry
    ended = {record.number for record in study.rounds() if _has_ended(study, record)} - open_rounds
    for number in range(budget.rounds):
        if number in ended:
            continue
        begun = bool(study.trials(round=number, limit=1))
        spent = budget.hours is not None and study.seconds_spent() >= 3600 * budget.hours
        full = budget.trials is not None and sum(study.counts().values()) >= budget.trials
        if ((spent or full) and not begun) or (spent and budget.on_timeout == "stop"):
            return
        yield number


def unfinished_text(study: Study) -> str:
    """Return what to add to a finished search's message about trials that its hours did not suffice for."""
    counts = study.counts()
    left = counts[TrialStatus.SUBMITTED] + counts[TrialStatus.RUNNING]
    return f"; {TIME_IS_OVER}: a larger one goes on with {left} unfinished trials" if left else ""


def is_finished(study: Study) -> bool:
    """Whether nothing is left to run: no round is left, or the last one found the space exhausted."""
    left = next(rounds_left(study), None)
    rounds = study.rounds()
    exhausted = rounds and _has_ended(study, rounds[-1]) and not study.trials(round=rounds[-1].number, limit=1)
    return left is None or bool(exhausted and left > rounds[-1].number)


def _has_ended(study: Study, record: RoundRecord) -> bool:
    """Whether a round has ended. A round that failed before it had trials is still to be run."""
    if record.state is RoundState.FAILED:
        return bool(study.trials(round=record.number, limit=1))
    return record.state is RoundState.COMPLETED
