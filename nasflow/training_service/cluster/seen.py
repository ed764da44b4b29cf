"""What a cluster reports of a run."""

from dataclasses import dataclass

from nasflow.training_service.base import JobStatus


@dataclass(frozen=True)
class Seen:
    """A run's state as reported by the cluster.

    Attributes:
        status: PENDING; RUNNING while any process of it may be left; EXITED if its program ended by itself; else LOST.
        reason: one line for display.
        ran: false if it has never been on a node.
        out_of_memory: the cluster ended it because it used more memory than it was given.
        overtime: the cluster ended it because it reached the cluster's limit of a job's time.
    """

    status: JobStatus
    reason: str = ""
    ran: bool = True
    out_of_memory: bool = False
    overtime: bool = False
