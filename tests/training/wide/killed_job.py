"""Run a job, of which a rank fails at one place: `python killed_job.py JOB.json LOG [WHERE RANK EPOCH]`.

LOG gets a line for each epoch that a rank has trained to its end. Where the rank does not raise, exit or ask the job to
end, it is killed, or kills the job.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist

from nasflow.resumable import multi_node
from nasflow.training.runner import run_job_file
from nasflow.training.wide.link import Link
from nasflow.training.wide.member import WideMember

_PLACES: dict[str, tuple[Any, str]] = {
    "step": (WideMember, "train_batch"),
    "raise": (WideMember, "train_batch"),
    "exit": (WideMember, "train_batch"),
    "nan": (WideMember, "train_batch"),
    "preempt": (WideMember, "train_batch"),
    "saving": (multi_node.RankedCheckpointManager, "save"),
    "manifest": (multi_node, "_write_plain"),
    "job": (Link, "goes_on_after"),
}


def _at_third_batch(member: WideMember, batch: Any, index: int) -> int:
    """The epoch, in its third batch."""
    return member.finished_epochs + 1 if index == 2 else 0


def before(owner: Any, name: str, call: Callable[..., None]) -> None:
    """Let a function call another one first."""
    own = getattr(owner, name)

    def both(*args: Any, **kwargs: Any) -> Any:
        call(*args)
        return own(*args, **kwargs)

    setattr(owner, name, both)


def main(job: str, log: str, where: str = "", rank: str = "0", epoch: str = "0") -> None:
    """Run."""

    def note(member: WideMember) -> None:
        with Path(log).open("a") as file:
            file.write(f"{dist.get_rank()} {member.finished_epochs + 1}\n")

    def fail(*args: Any) -> None:
        here = {
            **dict.fromkeys(["step", "raise", "exit", "nan", "preempt"], _at_third_batch),
            "saving": lambda manager, state, epoch: epoch,
            "manifest": lambda folder, epoch, plain: epoch,
            "job": lambda link, report: report["epoch"],
        }[where](*args)
        if here == int(epoch) and dist.get_rank() == int(rank):
            if where == "raise":
                raise ValueError("this rank can't go on")
            if where == "exit":
                os._exit(3)
            if where == "nan":
                args[1][0].fill_(float("nan"))
                return
            number = signal.SIGTERM if where == "preempt" else signal.SIGKILL
            os.kill(os.getppid() if where in ("job", "preempt") else os.getpid(), number)

    before(WideMember, "end_epoch", note)
    if where:
        before(*_PLACES[where], fail)
    sys.exit(run_job_file(Path(job)))


if __name__ == "__main__":
    main(*sys.argv[1:])
