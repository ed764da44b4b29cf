"""Lets flow runs end in good order that were deleted in Prefect, by themselves or with their flow."""

import functools
from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import State
from prefect.client.schemas.responses import OrchestrationResult, SetStateStatus, StateAcceptDetails
from prefect.exceptions import ObjectNotFound

Report = Callable[..., OrchestrationResult[Any]]


def end_without_record(client: SyncPrefectClient) -> None:
    """Let flow runs of a client end although the server has them no more.

    Prefect's engine would raise an error in place of the flow's result, because it can't report the last state.
    """
    report = client.set_flow_run_state
    if not isinstance(
        report, functools.partial
    ):  # else it was done before, as flows share a client with their subflows
        client.set_flow_run_state = functools.partial(_report, report)  # type: ignore[method-assign]


def _report(report: Report, run: UUID | str, state: State[Any], force: bool = False) -> OrchestrationResult[Any]:
    try:
        return report(run, state, force=force)
    except ObjectNotFound:
        if not state.is_final():
            raise
        return OrchestrationResult(state=state, status=SetStateStatus.ACCEPT, details=StateAcceptDetails())
