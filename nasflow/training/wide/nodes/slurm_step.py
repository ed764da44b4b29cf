"""A step of a Slurm job: a program on each of the job's other nodes."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from nasflow.errors import InfrastructureError
from nasflow.training.wide.nodes.meeting import Invitation


def start(nodes: int, invitation: Invitation, folder: Path, job: Path) -> subprocess.Popen[bytes]:
    """Start the program `node` on each of so many nodes beside that of this process, which is the first of its job.

    Args:
        folder: a new folder that all nodes see.
        job: the file of the job, which all nodes see.

    Raises:
        InfrastructureError: this process is in no Slurm job, or in one with fewer nodes.
    """
    there = int(os.environ.get("SLURM_JOB_NUM_NODES", "0"))
    srun = shutil.which("srun")
    if srun is None or there < 1 + nodes:
        raise InfrastructureError(
            f"evaluator.parallel.nodes: the job needs {1 + nodes} nodes of Slurm and its command srun; it has "
            f"{there or 'none'}"
        )
    file = folder / "invitation.json"
    invitation.write(file)
    command = [sys.executable, "-P", "-m", "nasflow.training.wide.node", str(file), str(job)]
    options = [
        *("--relative=1", f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1"),
        f"--cpus-per-task={os.environ.get('SLURM_CPUS_PER_TASK', '1')}",
        *("--overlap", "--export=ALL", "--unbuffered", "--kill-on-bad-exit=0", "--wait=0", "--mpi=none"),
    ]
    return subprocess.Popen([srun, *options, *command], stdin=subprocess.DEVNULL)


def number() -> int:
    """Return the number of this node in its job, as a program of such a step; that of the first node is 0."""
    return 1 + int(os.environ["SLURM_PROCID"])


def address_of_first(host: str) -> str:
    """Return the address of the node that has started this step, whose own name is `host`."""
    return os.environ.get("SLURM_LAUNCH_NODE_IPADDR") or host
