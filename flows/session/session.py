"""The state that the flows of one search share in one process: study, space, strategy, training service."""

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from nasflow.attempt.follower import AttemptFollower
from nasflow.config.job_secrets import job_secrets
from nasflow.config.search import DataConfig, SearchConfig
from nasflow.errors import InterruptedSearchError, ServiceError, StudyError
from nasflow.evaluator.candidate import Candidate
from nasflow.job.events import Event
from nasflow.kernel_costs import CostCache, StudyCosts
from nasflow.space.architecture import Architecture
from nasflow.space.space import Space
from nasflow.strategy.base import Strategy
from nasflow.study.folder import claim_folder
from nasflow.study.improvements import Gains
from nasflow.study.lease import Lease
from nasflow.study.records import Attempt
from nasflow.study.retention import erase_record
from nasflow.study.study import Study
from nasflow.training_service.base import TrainingService
from nasflow.trial import Trial

from ..pool.make import make_service
from ..server import forked_children, separate_random  # noqa: F401 (for the whole process)
from ..server.secrets import refuse_recorded_secrets, use_prefect_blocks
from ..ui.run_page import RunPage
from ..ui.trial_events import TrialEvents
from ..ui.trial_loggers import logged_trials
from .checks import checked
from .job_turns import JobTurns
from .proposals import Proposals
from .running_rounds import RunningRounds
from .signals import deaf_to_sigterm

_LOG = logging.getLogger(__name__)

Listener = Callable[[Attempt, Event], None]


@dataclass(frozen=True)
class Outline:
    """What the flows need of a trial's candidate; the attributes mean the same as in Candidate."""

    epochs: int
    parameters: int
    data: DataConfig | None

    @classmethod
    def of(cls, candidate: Candidate) -> "Outline":
        """Return the outline of a candidate."""
        return cls(candidate.epochs, candidate.parameters, candidate.config.data)


_open: dict[Path, "SearchSession"] = {}
_lock = threading.Lock()


class SearchSession:
    """One controller of one study.

    Flow parameters must be plain data, so flows take the config and find their session by it. The flow that opened the
    session (the search, or a round that runs by itself) closes it.

    Args:
        config: a checked config; its study is created or resumed.
        strategy: a new strategy, without any recorded rounds.
        listeners: called with every event of every job, from the thread that follows the job.
        service: the config's training service, if it exists already.
        lease: claimed for the study; the session's owner renews it.

    Attributes:
        rounds: those that run now.
        jobs: the order in which jobs are given to the service.
        proposals: what the strategy proposes.
        page: page of the session's flow run in the Prefect UI.
        events: sends Prefect events about the trials.
        kernel_costs: what the study's jobs plan by.
        flow_began: when the search flow's own code began, by `time.monotonic`.
        stop: set while the threads that follow jobs are to end soon.
        interrupted: whether the session is to end, too.
        time_is_over: whether the hours of the budget are over.
    """

    def __init__(
        self,
        config: SearchConfig,
        space: Space,
        strategy: Strategy,
        listeners: list[Listener],
        service: TrainingService | None = None,
        *,
        lease: Lease | None = None,
    ):
        self.config = config
        self.lease = lease or Lease()
        self.space = space
        self.listeners = listeners
        self.stop = threading.Event()
        self.interrupted = self.time_is_over = False
        self.flow_began: float | None = None
        self.service = service or make_service(
            config.training_service, config.study_dir, config.base_dir, job_secrets(config)
        )
        self.service.validate()
        self.study = Study.open(config, self.lease)
        self.page = RunPage(config, self.study.created_at)
        self.events = TrialEvents(config, self.page, Gains(config.objectives, self.study.front()))
        self.kernel_costs = StudyCosts(CostCache())
        self.rounds = RunningRounds()
        self.jobs = JobTurns(self.rounds, self.refuse_interrupted)
        self.proposals = Proposals(strategy, self.study, config.budget.rounds_ahead)
        self._building = threading.RLock()  # rounds that overlap build models at the same time
        self._outlines: dict[int, Outline] = {}
        self._asked: dict[Architecture, Outline] = {}

    @cached_property
    def follower(self) -> AttemptFollower:
        """The follower that brings attempts to their outcome, shared by all tasks of this session."""
        return AttemptFollower(self.study, self.service, self.stop)

    def ask(self, number: int, count: int) -> list[Architecture]:
        """Return what the strategy proposes for a round. `check` does not build again what it has built for this."""
        explored: dict[Architecture, Outline] = {}

        def note(architecture: Architecture, candidate: Candidate) -> None:
            explored[architecture] = Outline.of(candidate)

        with self._building:
            self.space.on_explored = note
            try:
                asked = self.proposals.ask(number, count)
            finally:
                self.space.on_explored = None
            self._asked = {architecture: explored[architecture] for architecture in asked if architecture in explored}
        return asked

    def check(self, trial: Trial) -> None:
        """Raise SpaceError unless a trial's architecture belongs to the space."""
        with self._building:
            outline = self._asked.get(trial.architecture)
            self._outlines[trial.number] = outline or Outline.of(self.space.validate(trial.architecture))

    def outline(self, trial: Trial) -> Outline:
        """Return the outline of a trial. Its model is built once for this, without weights."""
        if trial.number not in self._outlines:
            self.check(trial)
        return self._outlines[trial.number]

    def await_earlier_rounds(self, number: int) -> None:
        """Wait until no round before this one runs. Raises InterruptedSearchError if the search is to stop first."""
        while self.rounds.oldest is not None and self.rounds.oldest < number:
            self.refuse_interrupted()
            self.rounds.wait(0.5)

    def interrupt(self) -> None:
        """Ask the threads that follow jobs to end soon, and then the session."""
        self.interrupted = True
        self.stop.set()

    def pause(self) -> None:
        """Ask the threads that follow jobs to end soon, and end the service's processes now, until `go_on`."""
        self.stop.set()
        self._end_processes()

    def end_in_time(self) -> None:
        """As `pause`, because the hours of the budget are over."""
        self.time_is_over = True
        self.pause()

    def go_on(self) -> None:
        """Continue after `pause`. Call it once no thread follows a job any more."""
        self.service.prepare()
        self.stop.clear()

    def refuse_interrupted(self) -> None:
        """Raise LeaseLostError if another controller has the study, InterruptedSearchError if the search is to stop."""
        if self.stop.is_set():
            self.lease.refuse_lost()
            raise InterruptedSearchError(f"study '{self.config.name}' was interrupted; run it again to go on from here")

    def end(self) -> None:
        """Interrupt the session and end the service's processes, unless another controller has the study.

        If they can't be ended, the log says so: the search's result, or why it has none, counts more.
        """
        self.interrupt()
        with deaf_to_sigterm():
            try:
                self._end_processes()
            except ServiceError as error:
                _LOG.error("not all jobs of study '%s' could be ended: %s", self.config.name, error)

    def _end_processes(self) -> None:
        if self.lease.held():
            self.service.cleanup()

    def tell(self, attempt: Attempt, event: Event) -> None:
        """Pass an event on to the listeners."""
        for listener in self.listeners:
            listener(attempt, event)


@contextmanager
def search_session(
    config: SearchConfig,
    listeners: list[Listener] | None = None,
    service: TrainingService | None = None,
    take_over: bool = False,
) -> Iterator[SearchSession]:
    """Yield the open session of the config's study in this process, or a new one that ends with this block.

    Ending it stops the service's processes. Jobs of a killed controller keep running, and the next session finds them.
    With `take_over` the study is taken from a controller that may be alive, which then stops.

    Raises:
        UserError: the config can't work or is not that of the open session, or another controller runs the study.
    """
    key = config.study_dir
    with _lock:
        present = _open.get(key)
    if present is not None:
        _refuse_other(config, present.config)
        try:
            with present.page.of_this_run():
                yield present
        except Exception:
            raise
        except BaseException:  # a signal, or suspended: Prefect waits for tasks, and these wait for jobs
            present.end()
            raise
        return
    use_prefect_blocks()
    refuse_recorded_secrets(config)
    space, strategy = checked(config)
    with ExitStack() as stack:
        session = SearchSession(config, space, strategy, list(listeners or []), service, lease=Lease(take_over))
        stack.callback(session.study.close)
        stack.enter_context(session.lease.kept(session.interrupt))
        _claim_folder(session)
        stack.enter_context(session.page.of_this_run())
        session.listeners += stack.enter_context(logged_trials(session.study))
        stack.callback(session.end)
        session.service.prepare()
        with _lock:
            _open[key] = session
        stack.callback(_open.pop, key, None)
        yield session


def _refuse_other(config: SearchConfig, present: SearchConfig) -> None:
    """Raise StudyError if a config is not the one with which its study is open in this process."""
    if changed := [key for key in SearchConfig.model_fields if getattr(config, key) != getattr(present, key)]:
        raise StudyError(
            f"study '{config.name}' is open in this process, with another {', '.join(changed)}: wait for the end of "
            "that search, or give this one another 'name'"
        )


def _claim_folder(session: SearchSession) -> None:
    """Mark the study's folder as its own. If it is another study's, nothing is left in the store of one without rounds.

    Raises:
        StudyError: the folder is another study's.
    """
    study, config = session.study, session.config
    try:
        claim_folder(config.study_dir, config.name, study.created_at)
    except StudyError:
        if not study.rounds():  # it was recorded just now, or by an earlier mistake like this one
            erase_record(config.store, config.name, session.lease)
        raise
