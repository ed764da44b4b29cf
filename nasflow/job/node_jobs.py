"""The processes of a job on several machines: the job itself on the first one, and a node job on each of the others.

A node job waits there for invitations of the job (nasflow.training.wide.node_job). It has a folder and a job.json like
any job, but no outcome and no checkpoints, and it is no job of the service: it ends with the job, and the job is lost
if it ends by itself.
"""

import re
from pathlib import Path

from nasflow.config.limits import LimitsConfig
from nasflow.job.events import Ended, parse_event, read_lines
from nasflow.job.spec import JobSpec, NodeSpec, job_dir
from nasflow.system.small_files import write_aside

_NODE_JOB = re.compile(r"(.+)-node-[1-9]\d*", re.ASCII)


def is_node_job(job_id: str) -> bool:
    """Whether an id is that of a node job."""
    return _NODE_JOB.fullmatch(job_id) is not None


def node_job(job_id: str, number: int) -> str:
    """Return the id of the process of a job on a machine; that on the first one, 0, is the job itself."""
    return f"{job_id}-node-{number}" if number else job_id


def job_of(job_id: str) -> str:
    """Return the id of the job that a node job belongs to."""
    found = _NODE_JOB.fullmatch(job_id)
    if found is None:
        raise ValueError(f"{job_id} is no node job")
    return found[1]


def why_ended(root: Path, job_id: str) -> str:
    """Return the error that has ended a node job, or where to look for it."""
    for line in reversed(read_lines(job_dir(root, job_id) / "events.jsonl", 0)[0]):
        event = parse_event(line)
        if isinstance(event, Ended) and event.error:
            return event.error
    return f"see jobs/{job_id}/job.log"


def divide(root: Path, spec: JobSpec, first: str | None = None) -> list[str]:
    """Write the job.json of each process of a job on several machines, and return their ids, the job's own first.

    Args:
        first: the address of the first machine; None if all have the root in common.
    """
    ids = [node_job(spec.job_id, number) for number in range(spec.nodes)]
    for number, job_id in enumerate(ids):
        node = NodeSpec(number=number, first=first)
        # the job's process watches its ranks on all hosts
        limits = LimitsConfig(stalled=None) if number else spec.limits
        own = spec.model_copy(update={"job_id": job_id, "node": node, "limits": limits})
        folder = job_dir(root, job_id)
        folder.mkdir(parents=True, exist_ok=True)
        write_aside(folder / "job.json", own.model_dump_json())
    return ids
