"""One sampling round: propose, train together, retry the failed ones one by one, record."""

from typing import Annotated

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed
from pydantic import WithJsonSchema

from nasflow.config.search import SearchConfig
from nasflow.errors import InterruptedSearchError, RefusedError, TrialError
from nasflow.study.records import RoundState
from nasflow.trial import Trial, TrialStatus

from ..server.flow_calls import with_server
from ..session.control import controlled
from ..session.session import SearchSession, search_session
from ..task_threads import UNLIMITED
from .record import RoundSummary, persist_metrics
from .tasks import batch_trials, submit_trials
from .train_trials import Training, train_alone_all

# Prefect makes the schema of a flow's parameters, for deployments, when the flow is imported; a config's takes 0.1 s.
_Config = Annotated[SearchConfig, WithJsonSchema({"type": "object"})]


@with_server
@flow(
    name="nas-sampling-round",
    description="One round of a search: propose architectures, train them together, retry what failed, record.",
    flow_run_name="{config.name}: round {number}",
    task_runner=UNLIMITED,
    persist_result=False,
)
def sampling_round(config: _Config, number: int) -> State[RoundSummary]:
    """Run or resume round `number` (from 0) of a search.

    The search flow calls it once per round; it can also be called by itself.

    Raises:
        TrialError: no trial of it could be scored; the state is FAILED.
    """
    with search_session(config) as session, controlled(session):
        session.page.tag_flow_run(f"round:{number}")
        try:
            return _run(session, number)
        except InterruptedSearchError as error:
            return Cancelled(message=str(error))
        except RefusedError as error:  # once the space or the data are fixed, the search runs this round again
            session.study.end_round(number, RoundState.FAILED, str(error))
            raise


def _run(session: SearchSession, number: int) -> State[RoundSummary]:
    with session.rounds.running(number):
        session.study.begin_round(number)
        trials = submit_trials(session, number)
        if trials:
            training = Training(session)
            training.start_batches(batch_trials(session, number))
            session.rounds.planned(number)
            training.finish()
            train_alone_all(session, unfinished(session, number))
        session.await_earlier_rounds(number)  # this round may reuse their results
        summary = persist_metrics(session, number)
        if not trials:
            return Completed(message="the strategy found no new architecture", data=summary)
        session.events.round_ended(number, trials=summary.trials, scored=summary.scored, failed=summary.failed)
        if not summary.scored:
            name = session.config.name
            why = f"round {number} of study '{name}': {summary.sentence}: nasflow show {name} says why"
            return Failed(message=summary.sentence, data=TrialError(why))
        return Completed(message=summary.sentence, data=summary)


def unfinished(session: SearchSession, number: int) -> list[Trial]:
    """Return the trials of a round that still have to be trained, without those that reuse another trial's result."""
    present = session.study.trials((TrialStatus.SUBMITTED, TrialStatus.RUNNING), round=number)
    return [trial for trial in present if trial.replayed_from is None]
