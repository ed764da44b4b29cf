"""State messages of failed and retried tasks in the Prefect UI: the trial's own error, in one line."""

from typing import Any

from prefect import get_run_logger
from prefect.client.schemas.objects import State
from prefect.context import TaskRunContext
from prefect.states import Failed, Retrying
from prefect.utilities.engine import emit_task_run_state_change_event

from nasflow.errors import JobError
from nasflow.report.text import error_headline


def failed(error: JobError) -> State[Any]:
    """Return the state of a task after its job failed, with one line of the error, and log the whole error."""
    get_run_logger().error("%s", error)
    return Failed(message=error_headline(str(error)), data=error)


def tell_retry(error: str | None) -> str:
    """In a retry of a task, show in its state the number of the retry and the error before it.

    Prefect's own states of a retry have no message.

    Args:
        error: error of the previous try.

    Returns:
        The same text, to be appended to another message; empty in the first try.
    """
    context = TaskRunContext.get()
    if context is None or context.task_run.run_count < 2:
        return ""
    run = context.task_run
    again = f"retry {run.run_count - 1} of {context.task.retries} after: {error_headline(error)}"
    emit_task_run_state_change_event(task_run=run, initial_state=run.state, validated_state=Retrying(message=again))
    return f"; {again}"
