"""Trains batches, and trials that a batch could not train, each of these in its own job."""

from collections.abc import Sequence
from queue import SimpleQueue
from typing import Any

from prefect.client.schemas.objects import State
from prefect.futures import PrefectFuture

from nasflow.errors import JobError
from nasflow.report.text import numbers_text
from nasflow.study.records import Attempt
from nasflow.trial import Trial

from ..session.session import SearchSession
from .tasks import train_alone, train_batch


def train_alone_all(session: SearchSession, trials: Sequence[Trial]) -> None:
    """Train each trial in its own job, with retries. Trials that fail every retry are recorded as failed."""
    training = Training(session)
    training.start_alone(trials)
    training.finish()


class Training:
    """The task runs that train a round's batches, the most expensive first, and trials alone.

    Trials that a batch could not train follow alone as soon as it has ended, with retries. Those that fail every retry
    are recorded as failed.
    """

    def __init__(self, session: SearchSession):
        retry = session.config.retry
        self._together = train_batch.with_options(retries=retry.batch, retry_delay_seconds=0)
        self._alone = train_alone.with_options(retries=retry.alone, retry_delay_seconds=0)
        self._session = session
        self._running = 0
        self._ended = SimpleQueue[tuple[Attempt | Trial, PrefectFuture[Any]]]()

    def start_batches(self, batches: Sequence[Attempt]) -> None:
        """Start the task runs of batches."""
        if self._session.config.budget.rounds_ahead:
            self._session.jobs.set_slots(len(self._session.service.slots()))
        costs = {batch.id: self._cost(self._session.study.trials_numbered(batch.members)) for batch in batches}
        for batch in sorted(batches, key=lambda batch: -costs[batch.id]):
            self._session.jobs.expect(batch.round, costs[batch.id], batch.members[0])
            self._watch(batch, self._together.submit(self._session, batch, numbers_text(batch.members)))

    def start_alone(self, trials: Sequence[Trial]) -> None:
        """Start the task runs of trials that train alone."""
        for trial in trials:
            self._session.jobs.expect(trial.round, self._cost([trial]), trial.number)
            self._watch(trial, self._alone.submit(self._session, trial.number, trial.round))

    def finish(self) -> None:
        """Wait for all task runs, and start those of trials that their batch could not train.

        Raises:
            InterruptedSearchError: the search is to stop. Any error that is not a job's ends the round, too, once
                nothing runs.
        """
        others: list[BaseException] = []
        while self._running:
            what, future = self._ended.get()
            self._running -= 1
            future.wait()  # so that it knows its state
            if others or self._session.stop.is_set():
                continue
            try:
                self._take(what, job_error(future.state))
            except Exception as error:  # raised once nothing runs
                others.append(error)
        self._session.refuse_interrupted()
        if others:
            raise others[0]

    def _watch(self, what: Attempt | Trial, future: PrefectFuture[Any]) -> None:
        first = what.number if isinstance(what, Trial) else what.members[0]

        def on_end(ended: PrefectFuture[Any]) -> None:
            self._session.jobs.forget(first)
            self._ended.put((what, ended))

        self._running += 1
        future.add_done_callback(on_end)

    def _take(self, what: Attempt | Trial, error: JobError | None) -> None:
        study = self._session.study
        if isinstance(what, Attempt):
            self.start_alone(study.unfinished(what.members))
        elif error is not None:
            self._session.events.ended([study.fail_trial(what.number, str(error))])

    def _cost(self, trials: Sequence[Trial]) -> float:
        """Return the work that trials still need, relative to others."""
        cost = 0.0
        for trial in trials:
            if not trial.status.finished:
                outline = self._session.outline(trial)
                cost += outline.parameters * max(0, outline.epochs - trial.epochs)
        return cost


def job_error(state: State[Any]) -> JobError | None:
    """Return why a task's job failed; None if it did not. Raises any other error, which ends the round."""
    if state.is_completed():
        return None
    error = state.result(raise_on_failure=False)
    if not isinstance(error, JobError):
        raise error
    return error
