"""The retry flow: train a study's failed trials again, and nothing else."""

from collections import defaultdict

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from nasflow.config import SearchConfig
from nasflow.errors import InterruptedSearchError
from nasflow.trial import Trial

from .record import persist_metrics, show_search
from .round_flow import train_one_by_one
from .search_flow import interruptible
from .session import search_session


@flow(name="nas-retry", flow_run_name="{config.name}: retry the failed")
def retry_failed(config: SearchConfig) -> State[list[Trial]]:
    """Train every failed trial of the config's study alone again, from its newest checkpoint.

    Gives the retried trials as they stand now. FAILED if there were some and none could be scored.
    """
    with search_session(config) as session, interruptible(session):
        reset = session.study.reset_failed()
        if not reset:
            return Completed(message="no trial has failed", data=[])
        rounds = defaultdict[int, list[Trial]](list)
        for trial in reset:
            rounds[trial.round].append(trial)
        try:
            train_one_by_one(session, [trial for trial in reset if trial.replayed_from is None])
        except InterruptedSearchError as error:
            for trial in reset:  # as they were, so that the next retry takes up the rest
                session.study.fail_trial(trial.number, trial.error or "its retry was interrupted")
            return Cancelled(message=str(error))
        for number in sorted(rounds):
            persist_metrics(session, number)
        show_search(session)
        now = [session.study.trial(trial.number) for trial in reset]
        scored = sum(trial.status.scored for trial in now)
        return (Completed if scored else Failed)(message=f"{scored} of {len(now)} trials trained", data=now)
