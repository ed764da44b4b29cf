"""The ranks of a trial on another machine than the job's process, and the program that starts them on a node of Slurm.

It is `python -m nasflow.training.wide.node INVITATION JOB_JSON`.
"""

import contextlib
import json
import os
import signal
import sys
from multiprocessing.connection import wait
from pathlib import Path

from nasflow.clean_text import error_text
from nasflow.errors import InfrastructureError
from nasflow.job import activity
from nasflow.job.spec import JobSpec, read_spec
from nasflow.system.memory import KillWatch
from nasflow.training.wide.link import Link
from nasflow.training.wide.nodes import slurm_step
from nasflow.training.wide.nodes.meeting import Invitation, address_of, interface_of
from nasflow.training.wide.rank import Task, train
from nasflow.training.wide.ranks import Processes, lacking_memory

_POLL = 1.0  # seconds


def take_part(job: JobSpec, root: Path, invitation: Invitation, host: str, node: int) -> bool:
    """Start the ranks of this machine, follow them to their ends, and report these to the job's process.

    If the connection to that process ends, so do they.

    Args:
        job: the job.
        root: below which its files are on this machine.
        invitation: to one of its trials.
        host: the address of the job's process.
        node: the number of this machine.

    Returns:
        Whether all have ended by themselves, without an error.

    Raises:
        UnreachedError: the job's process can't be reached.
        ValueError: it invites to a trial that is not the job's.
        InfrastructureError: this machine has other versions of what ranks need.
    """
    spec = next((member for member in job.members if member.trial == invitation.trial), None)
    if spec is None:
        raise ValueError(f"trial {invitation.trial} is not one of job {job.job_id}")
    invitation.refuse_other_versions()
    task = Task(job, spec, root, Path())
    devices = task.parallel.devices
    to_job = invitation.accept(host, -node)

    def connect(rank: int) -> Link:
        connection = invitation.accept(host, rank)
        return Link(connection, invitation.reported, interface_of(address_of(connection)), host)

    numbers = range(node * devices, (node + 1) * devices)
    with (
        contextlib.closing(to_job),
        contextlib.chdir(job.base_dir),
    ):  # relative paths among the user's params start there
        ranks = Processes(numbers, lambda rank, link: train(task, rank, link), connect, [to_job])
        codes: dict[int, int] = {}
        kills = KillWatch()
        try:
            while len(codes) < devices:
                if to_job in wait([to_job, *ranks.sentinels], _POLL):  # it says nothing, so it has ended
                    return False
                activity.progress()  # the job's process sees to it that ranks do not hang
                kills.look()
                if (now := ranks.exit_codes()) != codes:
                    codes = now
                    lacked = lacking_memory(codes, kills, devices)
                    with contextlib.suppress(OSError):  # it has ended, so it can be reached no more
                        to_job.send_bytes(json.dumps({"codes": codes, "lacked_memory": lacked}).encode())
        finally:
            ranks.end()
    return not any(codes.values())


def main(invited: Path, file: Path) -> int:
    """Take part in a trial, on a node of Slurm."""
    for number in (signal.SIGTERM, signal.SIGINT):  # the job's process is asked, too, and ends this one
        signal.signal(number, signal.SIG_IGN)
    invitation = Invitation.read(invited)
    job = read_spec(file)
    host = slurm_step.address_of_first(invitation.host)
    return int(not take_part(job, file.parents[2], invitation, host, slurm_step.number()))


if __name__ == "__main__":
    try:
        sys.exit(main(*map(Path, sys.argv[1:])))
    except (OSError, ValueError, InfrastructureError) as error:
        sys.exit(f"node {os.uname().nodename} can't take part in the trial: {error_text(error)}")
