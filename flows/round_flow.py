"""One sampling round: propose, train together, retry the failed ones one by one, record."""

from collections.abc import Sequence
from typing import Any

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from nasflow.config.search import SearchConfig
from nasflow.errors import InterruptedSearchError, JobError, SharedLayerError
from nasflow.report.text import numbers_text
from nasflow.study.records import Attempt, RoundState
from nasflow.trial import Trial, TrialStatus

from .record import RoundSummary, persist_metrics
from .session.control import controlled
from .session.session import SearchSession, search_session
from .tasks import batch_trials, submit_trials, train_alone, train_batch


@flow(
    name="nas-sampling-round",
    description="One round of a search: propose architectures, train them together, retry what failed, record.",
    flow_run_name="{config.name}: round {number}",
    persist_result=False,
)
def sampling_round(config: SearchConfig, number: int) -> State[RoundSummary]:
    """Round `number` (from 0) of a search, from wherever it stands. FAILED if no trial of it could be scored.

    May be called by itself; the search flow calls it once a round.
    """
    with search_session(config) as session, controlled(session):
        session.page.tag_flow_run(f"round:{number}")
        try:
            return _run(session, number)
        except InterruptedSearchError as error:
            return Cancelled(message=str(error))
        except SharedLayerError as error:  # a search whose space was mended opens the round again
            session.study.end_round(number, RoundState.FAILED, str(error))
            raise


def _run(session: SearchSession, number: int) -> State[RoundSummary]:
    session.study.begin_round(number)
    strategy = session.strategy  # made before this round ends, for it catches up with the rounds that have
    trials = submit_trials(session, number)
    if not trials:
        return Completed(message="the space has no more architectures", data=persist_metrics(session, number))
    train_together(session, batch_trials(session, number))
    train_one_by_one(session, unfinished(session, number))
    summary = persist_metrics(session, number)
    session.events.round_ended(number, trials=summary.trials, scored=summary.scored, failed=summary.failed)
    strategy.tell([trial for trial in session.study.trials(round=number) if trial.status.finished])
    return (Completed if summary.scored else Failed)(message=summary.sentence, data=summary)


def train_together(session: SearchSession, batches: Sequence[Attempt]) -> None:
    """Run all batches side by side. What a batch could not train is left unfinished."""
    retry = session.config.retry
    train = train_batch.with_options(retries=retry.batch, retry_delay_seconds=retry.delay_seconds)
    futures = [train.submit(session, batch, numbers_text(batch.members)) for batch in batches]
    for future in futures:
        future.wait()
    session.refuse_interrupted()
    for future in futures:
        job_error(future.state)


def train_one_by_one(session: SearchSession, trials: Sequence[Trial]) -> None:
    """Train each of `trials` in a job of its own, with retries; those that fail for good are recorded as failed."""
    retry = session.config.retry
    train = train_alone.with_options(retries=retry.alone, retry_delay_seconds=retry.delay_seconds)
    futures = {trial.number: train.submit(session, trial.number, trial.round) for trial in trials}
    for future in futures.values():
        future.wait()
    session.refuse_interrupted()
    for number, future in futures.items():
        if (error := job_error(future.state)) is not None:
            session.events.ended([session.study.fail_trial(number, str(error))])


def job_error(state: State[Any]) -> JobError | None:
    """Why a task's job did not end well, None if it did. Any other error is no trial's, and ends the round: raised."""
    if state.is_completed():
        return None
    error = state.result(raise_on_failure=False)
    if not isinstance(error, JobError):
        raise error
    return error


def unfinished(session: SearchSession, number: int) -> list[Trial]:
    """The trials of a round that have to be trained still; those that wait for another trial's result are not."""
    present = session.study.trials((TrialStatus.SUBMITTED, TrialStatus.RUNNING), round=number)
    return [trial for trial in present if trial.replayed_from is None]
