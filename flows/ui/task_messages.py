"""State messages of failed and retried tasks in the Prefect UI: the trial's own error, in one line."""

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from prefect import get_run_logger
from prefect.client.schemas.objects import State, TaskRun
from prefect.context import TaskRunContext
from prefect.states import AwaitingRetry, Failed, Retrying
from prefect.utilities.engine import emit_task_run_state_change_event

from nasflow.errors import JobError
from nasflow.report.text import error_headline

_errors: dict[UUID, str] = {}  # by task run that is tried again, the error of its last try


def failed(error: JobError) -> State[Any]:
    """Return the state of a task after its job failed, with one line of the error, and log the whole error."""
    get_run_logger().error("%s", error)
    return Failed(message=error_headline(str(error)), data=error)


def note_error(run: TaskRun, error: BaseException) -> None:
    """Keep the error of a task run's try for `await_retry` of the next."""
    _errors[run.id] = str(error)


def await_retry(delays: Sequence[float], wait: Callable[[float], object]) -> str:
    """In a retry of a task, wait for its delay, and show in its state the number of the retry and the error before it.

    Prefect's own states of a retry have no message, and its own delay goes on although the search is to stop.

    Args:
        delays: seconds before each retry; the last one repeats.
        wait: waits so many seconds, or until the search is to stop.

    Returns:
        The same text, to be appended to another message; empty in the first try.
    """
    context = TaskRunContext.get()
    if context is None or context.task_run.run_count < 2:
        return ""
    run = context.task_run
    number = run.run_count - 1
    again = f"retry {number} of {context.task.retries} after: {error_headline(_errors.pop(run.id, None))}"
    if delay := delays[min(number, len(delays)) - 1]:
        _show(run, AwaitingRetry(scheduled_time=datetime.now(UTC) + timedelta(seconds=delay), message=again))
        wait(delay)
    _show(run, Retrying(message=again))
    return f"; {again}"


def _show(run: TaskRun, state: State[Any]) -> None:
    emit_task_run_state_change_event(task_run=run, initial_state=run.state, validated_state=state)
