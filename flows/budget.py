"""What a study still has to run, according to its record: its rounds, and the test of its best trial."""

from collections.abc import Iterator

from nasflow.study.records import Attempt, AttemptKind, AttemptState, RoundRecord, RoundState
from nasflow.study.study import Study
from nasflow.trial import Trial, TrialStatus

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
        spent = _hours_spent(study)
        full = budget.trials is not None and sum(study.counts().values()) >= budget.trials
        if ((spent or full) and not begun) or (spent and budget.on_timeout == "stop"):
            return
        yield number


def unfinished_text(study: Study) -> str:
    """Return what to add to a finished search's message about trials that its budget did not suffice for."""
    counts = study.counts()
    left = counts[TrialStatus.SUBMITTED] + counts[TrialStatus.RUNNING]
    if not left:
        return ""
    late = _hours_spent(study) or any(record.message == TIME_IS_OVER for record in study.rounds())
    over = f"{TIME_IS_OVER}: a larger one" if late else "a larger budget"
    return f"; {over} goes on with {left} unfinished trials"


def is_finished(study: Study) -> bool:
    """Whether nothing is left to run: no test is due, and no round is left, or the last ones found no architecture."""
    if (best := untested(study)) is not None and why_not_tested(study, best) is None:
        return False
    left = next(rounds_left(study), None)
    last = max((record.number for record in study.rounds()), default=-1)
    return left is None or (left > last and is_exhausted(study, last))


def is_exhausted(study: Study, number: int) -> bool:
    """Whether round `number` has ended without trials, and so have the `budget.rounds_ahead` rounds before it.

    The first of these was proposed before the results of the rounds ahead of it were known, the last knew all: results
    may let a strategy go on, as those that asha promotes do.
    """
    ended = {record.number for record in study.rounds() if _has_ended(study, record)}
    last = range(number - study.config.budget.rounds_ahead, number + 1)
    return ended.issuperset(last) and not any(study.trials(round=one, limit=1) for one in last)


def untested(study: Study) -> Trial | None:
    """Return the best trial if it is still to be scored on the config's test data; None if not."""
    if study.config.evaluator.test_data is None:
        return None
    return next((trial for trial in study.leaderboard(1) if not is_tested(study, trial)), None)


def is_tested(study: Study, trial: Trial) -> bool:
    """Whether a job has scored a trial on the config's test data.

    Other test data take away the metrics of an earlier test (`Study.open`). The metrics alone do not say it: a trial
    may log names that begin with `test_` itself.
    """
    succeeded = any(attempt.state is AttemptState.SUCCEEDED for attempt in _tests(study, trial))
    return succeeded and any(name.startswith("test_") for name in trial.metrics)


def why_not_tested(study: Study, trial: Trial) -> str | None:
    """Return why the last job that was to test a trial has failed; None if it did not, or there was none."""
    if is_tested(study, trial):
        return None
    tests = _tests(study, trial)
    return tests[-1].error if tests else None


def _tests(study: Study, trial: Trial) -> list[Attempt]:
    return study.attempts(trial=trial.number, kind=AttemptKind.TEST)


def _hours_spent(study: Study) -> bool:
    hours = study.config.budget.hours
    return hours is not None and study.seconds_spent() >= 3600 * hours


def _has_ended(study: Study, record: RoundRecord) -> bool:
    """Whether a round has ended. A round that failed before it had trials is still to be run."""
    if record.state is RoundState.FAILED:
        return bool(study.trials(round=record.number, limit=1))
    return record.state is RoundState.COMPLETED
