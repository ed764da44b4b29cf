"""What the state of a job's flow run means for the job."""

from prefect.client.schemas.objects import FlowRun, StateType

from nasflow.training_service.base import JobStatus
from nasflow.training_service.cluster.seen import Seen

_STATUS = {
    StateType.SCHEDULED: JobStatus.PENDING,
    StateType.PENDING: JobStatus.PENDING,
    StateType.COMPLETED: JobStatus.EXITED,
    StateType.FAILED: JobStatus.EXITED,
    StateType.CRASHED: JobStatus.LOST,
    StateType.CANCELLED: JobStatus.LOST,
}  # in any other state, such as CANCELLING, there may be processes


def seen(run: FlowRun, waits: str, ended: bool) -> Seen:
    """Return what a flow run shows of its job.

    Args:
        run: as read from the server.
        waits: why flow runs have been waiting for long; empty if none has.
        ended: the job's program has recorded its end, so nothing is left of it.
    """
    state = run.state
    if state is None:
        return Seen(JobStatus.PENDING, ran=False)
    status = _STATUS.get(state.type, JobStatus.RUNNING)
    if state.type is StateType.CANCELLING and ended:  # its worker says CANCELLED later, if it lives
        status = JobStatus.LOST
    words = waits if status is JobStatus.PENDING else " ".join((state.message or "").split())[:300]
    reason = f"its flow run in Prefect is {state.name}{': ' if words else ''}{words}"
    return Seen(status, reason, ran=run.start_time is not None)
