"""Pausing, suspending and cancelling a search from Prefect's UI, API, command line or automations.

Prefect's engine notices such requests only between two tasks, and a batch trains for hours. If no runner started the
flow run, it does not notice a cancellation at all. So a thread polls the run's state on the server.
"""

import contextvars
import functools
import itertools
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, ParamSpec, TypeVar
from uuid import UUID

import httpx
from prefect import get_run_logger
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, State, StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, Pause
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.states import Cancelled, Running, Scheduled, Suspended

from nasflow.config.search import SearchConfig
from nasflow.errors import InterruptedSearchError, NasflowError, StudyError
from nasflow.study.lease import LEASE_SECONDS
from nasflow.study.study import Study

from ..server.secrets import use_prefect_blocks
from ..ui.heartbeats import Heartbeats
from .deleted import ANSWER_SECONDS, end_without_record, is_deleted, may_be_deleted
from .place import keep_without_place
from .session import SearchSession
from .stop_events import StopEvents

_LOG = logging.getLogger(__name__)

POLL_SECONDS = 1.0
_DELETED = "ended, because its flow run was deleted in Prefect; run it again to go on from its finished epochs"
_SURELY = 2  # answers in a row without the flow run
_STOP_EVENTS_EVERY = 5  # looks at the run's state
_UNFINISHED = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING]

P = ParamSpec("P")
R = TypeVar("R")


class Control:
    """Applies state changes of a flow run on the server to its session. A cancelled round cancels the search.

    If the flow run is deleted, the search ends as if it was cancelled, because it can report nothing any more: it could
    begin no further round. A round whose run is deleted goes on.

    Paused and suspended are the same here. A deployment's run ends its process, and a worker continues it once it is
    resumed. Any other run ends its jobs and waits. If the flow that calls it is suspended, it ends with that flow.

    Args:
        session: the session of the flow run.
        run: the flow run.

    Attributes:
        left: the state in which this process leaves the run to another process; None if it does not.
    """

    def __init__(self, session: SearchSession, run: FlowRun):
        self.left: State | None = None
        self._session = session
        self._run = run
        self._rounds: dict[UUID, Heartbeats] = {}
        self._stop_events = StopEvents(session.config.name)
        self._paused = False
        self._too_late = False
        self._missing = 0  # answers of the server without the flow run
        self._callers = _suspension() if _is_called(run) else None  # of the flow that calls this one
        self._ended = threading.Event()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Poll the flow run's state, and send its heartbeats, in this block. With no server, nothing happens."""
        context = contextvars.copy_context()
        watcher = threading.Thread(target=context.run, args=(self._watch,), name="nasflow-control", daemon=True)
        watcher.start()
        with Heartbeats(self._run).sent():  # not by the watcher, which may have to wait for jobs that end
            try:
                yield
            finally:
                self._ended.set()
                watcher.join()

    @contextmanager
    def of_round(self, run: FlowRun) -> Iterator[None]:
        """Also poll the state of a round's flow run, and send its heartbeats, in this block."""
        heartbeats = Heartbeats(run)
        heartbeats.send_due()
        self._rounds[run.id] = heartbeats
        try:
            yield
        finally:
            del self._rounds[run.id]

    def refuse_deleted(self) -> None:
        """Raise InterruptedSearchError if the flow run was deleted."""
        if is_deleted(self._run.id):
            raise InterruptedSearchError(f"study '{self._session.config.name}' is {_DELETED}") from None

    def resumed(self) -> bool:
        """Whether the search continues after an interruption. Waits while it is paused.

        Call it once no thread follows a job any more.

        Raises:
            Pause: this process is to leave the search to another.
            LeaseLostError: another controller has taken the study.
            InterruptedSearchError: the time limit of the pause has passed.
        """
        if self._paused and not self._session.interrupted:
            self._session.pause()  # again, for jobs that were just being submitted
        while self._paused and not self._session.interrupted:
            self._ended.wait(POLL_SECONDS / 4)
        if self.left is not None:
            raise Pause(state=self.left)
        if self._too_late:
            name = self._session.config.name
            raise InterruptedSearchError(f"study '{name}' was paused and not resumed in time; run it again to go on")
        if self._session.interrupted or not self._session.stop.is_set():
            self._session.lease.refuse_lost()
            return False
        self._session.go_on()
        return True

    def _watch(self) -> None:
        """Look until the session ends; begin again after any error: no file can be opened, a proxy answers a page."""
        warned = False
        while True:
            try:
                self._look()
                return
            except Exception as error:  # without this thread no one could pause or cancel the search
                if not warned:
                    get_run_logger().warning(
                        "The states of the search's runs can't be read, which is tried again: %s", error
                    )
                warned = True
            if self._session.interrupted or self._ended.wait(POLL_SECONDS):
                return

    def _look(self) -> None:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),  # the next look is the retry
            get_client(httpx_settings={"timeout": ANSWER_SECONDS}, sync_client=True) as client,
        ):
            for look in itertools.count(1):
                if self._session.interrupted or self._ended.wait(POLL_SECONDS):
                    return
                for heartbeats in list(self._rounds.values()):
                    heartbeats.send_due()
                if self._callers is not None and self._callers.is_requested():
                    self._do(self._session.end, "suspended with the flow that called it: its jobs end")
                    return
                try:
                    runs = _read(client, [self._run.id, *self._rounds])
                    states = {run.id: run.state for run in runs if run.state}
                    self._revive(client, states)
                except httpx.HTTPError:
                    continue
                self._obey(states)
                if look % _STOP_EVENTS_EVERY == 0:
                    self._stop_trials(client)

    def _obey(self, states: Mapping[UUID, State]) -> None:
        now = [states[run] for run in [self._run.id, *self._rounds] if run in states]  # not rounds that ended
        if cancelled := [state for state in now if state.is_cancelling() or state.is_cancelled()]:
            self._do(self._session.end, f"{cancelled[0].name} in Prefect: its jobs are ended, finished epochs are kept")
            return
        state = states.get(self._run.id)
        self._missing = 0 if state is not None else self._missing + 1
        if state is None:
            if self._missing == _SURELY:
                self._do(self._session.end, _DELETED, _LOG.warning)
            return
        if not state.is_paused():
            self._too_late = self._paused and state.is_final()
            if self._too_late:
                self._session.interrupt()
            self._paused = False
        elif self._run.deployment_id is not None:
            self.left = state
            self._do(self._session.end, "suspended: its jobs and this process end; Resume continues from there")
        elif not self._paused:
            self._paused = True
            self._do(self._session.pause, "paused: its jobs end, and this process waits until it is resumed")

    def _revive(self, client: SyncPrefectClient, states: Mapping[UUID, State]) -> None:
        """Set those of the runs to RUNNING that are CRASHED in Prefect, as after an outage without heartbeats."""
        crashed = [run for run in [self._run.id, *self._rounds] if run in states and states[run].is_crashed()]
        if not crashed or self._paused or not self._session.lease.held():
            return
        if self._run.id in crashed:
            get_run_logger().warning(
                "study '%s' runs, but Prefect has its flow run as Crashed: %s; it is set to Running again",
                self._session.config.name,
                states[self._run.id].message,
            )
        state: State = Running(message="its process lives")
        for run in crashed:
            client.set_flow_run_state(run, state, force=True)

    def _stop_trials(self, client: SyncPrefectClient) -> None:
        log = get_run_logger()
        try:
            numbers = self._stop_events.take(client)
        except httpx.HTTPError as error:
            log.debug("events that stop trials can't be read: %s", error)
            return
        for number in numbers:
            try:
                self._session.study.refuse_ended(number)
                self._session.service.stop_trial(number)
            except NasflowError as error:
                log.warning("an event asks to stop trial %d: %s", number, error)
            else:
                log.info("an event asks to stop trial %d: it ends after its present epoch", number)

    def _do(self, act: Callable[[], None], why: str, log: Callable[..., None] | None = None) -> None:
        (log or get_run_logger().info)("study '%s' is %s", self._session.config.name, why)
        try:
            act()
        except Exception:  # tried again when the flow ends, which may raise
            get_run_logger().exception("the jobs of study '%s' could not be ended", self._session.config.name)


_controls: dict[SearchSession, Control] = {}


@contextmanager
def controlled(session: SearchSession) -> Iterator[Control]:
    """Yield the session's control, which belongs to the flow run that enters first. Its rounds get the same control."""
    run = _this_run()
    end_without_record(get_client(sync_client=True), run.id)
    if present := _controls.get(session):
        with present.of_round(run):
            yield present
        return
    control = _controls[session] = Control(session, run)
    try:
        with control.watching():
            yield control
    except BaseException as error:
        if control.left is not None:
            raise Pause(state=control.left) from error  # SIGTERM, say: the run stays suspended
        if may_be_deleted(error):
            control.refuse_deleted()
        raise
    finally:
        del _controls[session]


@contextmanager
def suspendable(config: SearchConfig) -> Iterator[None]:
    """Let a flow run be suspended without a time limit. Everything else in the flow belongs in this block.

    A suspended run ends its rounds. A resumed run first waits for its earlier process, which may still hold the study.

    Prefect gives a suspended run a time limit, five minutes by default, and then sets it to FAILED. The limit is
    removed here, because a suspended search uses no resources.

    Raises:
        StudyError: another flow run of this process, which is no round, has the config's study.
    """
    if any(session.config.study_dir == config.study_dir for session in list(_controls)):
        raise StudyError(
            f"study '{config.name}' runs in this process already: wait for the end of that search, or give this one "
            "another 'name'"
        )
    run = _this_run()
    if run.deployment_id is not None:
        keep_without_place()
    if run.run_count > 1:
        _await_leaving(config)
    try:
        yield
    except Pause as pause:
        state = pause.state
        try:
            with get_client(sync_client=True) as client:
                _end_rounds(client, run)
                state = _leave(client, run)
        except (httpx.HTTPError, ObjectNotFound) as error:
            get_run_logger().warning("the state of the suspended flow run could not be updated: %s", error)
        raise Pause(state=state) from None


def cancelled_if_interrupted(train: Callable[P, State[Any]]) -> Callable[P, State[Any]]:
    """Decorate the function of a task so that an interruption gives it the state CANCELLED, not FAILED."""

    @functools.wraps(train)
    def run(*args: P.args, **kwargs: P.kwargs) -> State[Any]:
        try:
            return train(*args, **kwargs)
        except InterruptedSearchError as error:
            return Cancelled(message=str(error))

    return run


def end_cancelling(state: State[R]) -> State[R]:
    """Return the final state of a subflow run, which is set to CANCELLED if it was cancelled before it began.

    Prefect's engine does not call the flow then, and leaves the run CANCELLING for ever.
    """
    run = state.state_details.flow_run_id
    if not state.is_cancelling() or run is None:
        return state
    cancelled: State[R] = Cancelled(message="cancelled before it began")
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(run, cancelled, force=True)
    return cancelled


def _this_run() -> FlowRun:
    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        raise RuntimeError("only a flow run can be controlled")
    return context.flow_run


def _is_called(run: FlowRun) -> bool:
    """Whether a flow of this process called the flow. A deployment's run has a process to itself, whatever began it."""
    return run.parent_task_run_id is not None and run.deployment_id is None


def _suspension() -> Any:
    """Return what Prefect's engine notes a suspension in, which a flow shares with its subflows; None without it."""
    return getattr(FlowRunContext.get(), "flow_run_suspension_request", None)


def _read(client: SyncPrefectClient, ids: list[UUID]) -> Sequence[FlowRun]:
    return client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=ids)))


def _await_leaving(config: SearchConfig) -> None:
    """Wait until no controller holds the study, at most as long as a lease lasts without renewal."""
    use_prefect_blocks()
    deadline = time.monotonic() + LEASE_SECONDS
    try:
        study = Study.load(config.store, config.name)
    except StudyError:  # no study yet, or an error that the search itself will report
        return
    with closing(study):
        while study.controller() is not None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)


def _end_rounds(client: SyncPrefectClient, run: FlowRun) -> None:
    """Set those rounds of the run to CANCELLED that Prefect's engine left unfinished."""
    left = FlowRunFilter(
        parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=[run.id]),
        state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_UNFINISHED)),
    )
    for child in client.read_flow_runs(flow_run_filter=left):
        state: State = Cancelled(message="suspended with its search")
        client.set_flow_run_state(child.id, state, force=True)


def _leave(client: SyncPrefectClient, run: FlowRun) -> State | None:
    """Let a worker continue a paused run once it is resumed, or now if it was already. Returns the run's state."""
    state = client.read_flow_run(run.id).state
    if state is not None and state.is_paused():
        details = state.state_details.model_copy(update={"pause_timeout": None, "pause_reschedule": True})
        message = "no time limit; Resume continues from the last finished epochs"
        state = Suspended(message=message, state_details=details)
    elif state is not None and state.is_running() and run.deployment_id is not None:  # resumed while this process ended
        state = Scheduled(message="resumed")
    else:
        return state
    client.set_flow_run_state(run.id, state, force=True)
    return state
