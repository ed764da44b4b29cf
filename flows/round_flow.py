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
    """Run or resume round `number` (from 0) of a search. The state is FAILED if no trial of it could be scored.

    The search flow calls it once per round; it can also be called by itself.
    """
    with search_session(config) as session, controlled(session):
        session.page.tag_flow_run(f"round:{number}")
        try:
            return _run(session, number)
        except InterruptedSearchError as error:
            return Cancelled(message=str(error))
        except SharedLayerError as error:  # once the space is fixed, the search runs this round again
            session.study.end_round(number, RoundState.FAILED, str(error))
            raise


def _run(session: SearchSession, number: int) -> State[RoundSummary]:
    session.study.begin_round(number)
    strategy = session.strategy  # before this round ends, because making it tells it the rounds that have ended
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
    """Run all batches in parallel. Trials that a batch could not train are left unfinished."""
    retry = session.config.retry
    train = train_batch.with_options(retries=retry.batch, retry_delay_seconds=retry.delay_seconds)
    futures = [train.submit(session, batch, numbers_text(batch.members)) for batch in batches]
    for future in futures:
        future.wait()
    session.refuse_interrupted()
    for future in futures:
        job_error(future.state)


def train_one_by_one(session: SearchSession, trials: Sequence[Trial]) -> None:
    """Train each trial in its own job, with retries. Trials that fail every retry are recorded as failed."""
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
    """Return why a task's job failed; None if it did not. Raises any other error, which ends the round."""
    if state.is_completed():
        return None
    error = state.result(raise_on_failure=False)
    if not isinstance(error, JobError):
        raise error
    return error


def unfinished(session: SearchSession, number: int) -> list[Trial]:
    """Return the trials of a round that still have to be trained, without those that reuse another trial's result."""
    present = session.study.trials((TrialStatus.SUBMITTED, TrialStatus.RUNNING), round=number)
    return [trial for trial in present if trial.replayed_from is None]
