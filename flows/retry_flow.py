"""The retry flow: train a study's failed trials again, and nothing else."""

from collections import defaultdict
from collections.abc import Sequence

from prefect import flow
from prefect.client.schemas.objects import State
from prefect.states import Cancelled, Completed, Failed

from nasflow.config.search import SearchConfig
from nasflow.errors import InterruptedSearchError, TrialError
from nasflow.trial import Trial

from .rounds.record import persist_metrics, show_search
from .rounds.tasks import end_unfit
from .rounds.train_trials import train_alone_all
from .server.flow_calls import with_server
from .session.control import controlled, suspendable
from .session.session import SearchSession, search_session
from .session.signals import interruptible
from .task_threads import UNLIMITED


@with_server
@flow(
    name="nas-retry",
    description="Train the failed trials of a study again, and nothing else.",
    flow_run_name="{config.name}: retry the failed",
    task_runner=UNLIMITED,
)
def retry_failed(config: SearchConfig) -> State[list[Trial]]:
    """Train every failed trial of the config's study again, alone, from its newest checkpoint.

    Returns the retried trials with their new status.

    Raises:
        TrialError: trials were retried and none was scored; the state is FAILED.
    """
    with (
        suspendable(config),
        search_session(config) as session,
        interruptible(lambda: session.interrupted, session.interrupt),
        controlled(session) as control,
    ):
        reset = session.study.reset_failed()
        if not reset:
            return Completed(message="no trial has failed", data=[])
        rounds = defaultdict[int, list[Trial]](list)
        for trial in reset:
            rounds[trial.round].append(trial)
        left = reset
        while left:
            try:
                _train(session, left)
                break
            except InterruptedSearchError as error:
                if not control.resumed():
                    return Cancelled(message=str(error))
                left = session.study.reset_failed()
        for number in sorted(rounds):
            persist_metrics(session, number)
        show_search(session)
        now = [session.study.trial(trial.number) for trial in reset]
        scored = sum(trial.status.scored for trial in now)
        message = f"{scored} of {len(now)} trials trained"
        if not scored:
            why = f"study '{config.name}': {message}: nasflow show {config.name} says why"
            return Failed(message=message, data=TrialError(why))
        return Completed(message=message, data=now)


def _train(session: SearchSession, trials: Sequence[Trial]) -> None:
    """Train each trial alone. If that is interrupted, mark the trials as failed, so that the next retry takes them."""
    unfit = end_unfit(session, trials)
    session.events.ended(unfit)
    ended = {trial.number for trial in unfit}
    try:
        train_alone_all(session, [one for one in trials if one.replayed_from is None and one.number not in ended])
    except BaseException:
        for trial in trials:
            session.study.fail_trial(trial.number, trial.error or "its retry was interrupted")
        raise
