"""Lets flow runs end in good order that were deleted in Prefect, by themselves or with their flow."""

import threading
import time
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus, StateAcceptDetails
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, temporary_settings

ANSWER_SECONDS = 10.0
_TRIES, _BETWEEN = 3, 1.0  # seconds
_lock = threading.Lock()


def may_be_deleted(error: BaseException) -> bool:
    """Whether Prefect may have refused a request because the flow run that it is about was deleted."""
    if isinstance(error, httpx.HTTPStatusError):
        code = error.response.status_code
        return 400 <= code < 500 and code != httpx.codes.TOO_MANY_REQUESTS
    return isinstance(error, ObjectNotFound)


def is_deleted(run: UUID, tries: int = 1) -> bool:
    """Whether the server answers that it has no such flow run. It is asked until it answers, at most `tries` times.

    A 404 alone does not say so: a proxy answers it, too, while the server behind it is away.
    """
    for left in reversed(range(tries)):
        try:
            with (
                temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
                get_client(httpx_settings={"timeout": ANSWER_SECONDS}, sync_client=True) as client,
            ):
                return not client.read_flow_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[run])))
        except (httpx.HTTPError, ValueError):  # no answer, or a proxy's page
            if left:
                time.sleep(_BETWEEN)
    return False


def end_without_record(client: SyncPrefectClient, run: UUID) -> None:
    """Let a flow run end although the server has it no more. The client is changed until that run has ended.

    Prefect's engine would raise an error in place of the flow's result, because it can't report the last state.
    """
    with _lock:
        report = client.set_flow_run_state
        if not isinstance(report, _Report):  # flows share a client with their subflows
            report = _Report(client)
            client.set_flow_run_state = report  # type: ignore[method-assign]
        report.runs.add(run)


class _Report:
    """A client's `set_flow_run_state`, which accepts the last state of some runs even if they were deleted."""

    def __init__(self, client: SyncPrefectClient):
        self.runs: set[UUID] = set()
        self._client = client
        self._report = client.set_flow_run_state

    def __call__(self, flow_run_id: UUID | str, state: State[Any], force: bool = False) -> OrchestrationResult[Any]:
        run = UUID(str(flow_run_id))
        try:
            result = self._report(flow_run_id, state, force=force)
        except ObjectNotFound:
            if run not in self.runs or not state.is_final() or not is_deleted(run, tries=_TRIES):
                raise
            result = OrchestrationResult(state=state, status=SetStateStatus.ACCEPT, details=StateAcceptDetails())
        if (state.is_final() or state.is_paused()) and result.status != SetStateStatus.WAIT:
            self._end(run)
        return result

    def _end(self, run: UUID) -> None:
        with _lock:
            self.runs.discard(run)
            if not self.runs and self._client.set_flow_run_state is self:
                self._client.set_flow_run_state = self._report  # type: ignore[method-assign]
