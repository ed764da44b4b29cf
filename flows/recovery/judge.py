"""Decides whether a search is dead, from its study's record, its lease, and its flow run in Prefect."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from uuid import UUID

from nasflow.study.lease import Controller

GRACE = timedelta(seconds=60)
"""How long after its start a flow run may not hold its study yet."""

_STARTS_WITHIN = timedelta(minutes=30)
"""How long a worker may take to start the run of a deployment: images, nodes and pods take minutes."""
_ON_PURPOSE = {"CANCELLED": "was cancelled", "CANCELLING": "is being cancelled", "FAILED": "failed"}


class Standing(StrEnum):
    """State of a search, which decides what `nasflow recover` does with it."""

    WELL = "well"
    LEFT = "left alone"
    DEAD = "dead"


@dataclass(frozen=True)
class Run:
    """The newest flow run of a search, as Prefect has it.

    Attributes:
        type: Prefect's type of its state: RUNNING, CRASHED, ...
        name: name of its state, for people.
        at: when it entered that state.
        id: id of the flow run.
        due: when Prefect is to start it; None if it has started.
        deployed: whether a worker of its deployment can continue it.
    """

    type: str
    name: str
    at: datetime
    id: UUID | None = None
    due: datetime | None = None
    deployed: bool = False


@dataclass(frozen=True)
class Facts:
    """What is known about a search.

    Attributes:
        finished: whether its record leaves nothing to run.
        folder: folder of its jobs and checkpoints, if this machine lacks it; None otherwise.
        holder: the controller that holds the study.
        deserter: the controller that died while it held the study.
        run: its newest flow run; None if there is none since the study was last taken.
    """

    finished: bool
    folder: Path | None = None
    holder: Controller | None = None
    deserter: Controller | None = None
    run: Run | None = None

    @property
    def in_doubt(self) -> bool:
        """Whether Prefect has to be asked."""
        return not self.finished and self.holder is None


def judge(facts: Facts, now: datetime, grace: timedelta = GRACE) -> tuple[Standing, str]:
    """Return whether the search is to be resumed, and the reason."""
    run = facts.run
    if facts.finished:
        return Standing.WELL, "finished"
    if facts.holder is not None:
        return Standing.WELL, f"runs ({facts.holder})"
    if run is not None and (waits := _awaited(run, now, grace)):
        return Standing.WELL, waits
    if run is not None and run.type in _ON_PURPOSE:
        return Standing.LEFT, f"unfinished; its flow run {_ON_PURPOSE[run.type]}"
    if facts.deserter is None and (run is None or run.type == "COMPLETED"):
        return Standing.LEFT, "unfinished; its last controller ended in good order"
    if facts.folder is not None:
        return Standing.LEFT, f"dead, but this machine does not have its folder {facts.folder}"
    said = [] if facts.deserter is None else [_desertion(facts.deserter)]
    if run is not None and run.type != "COMPLETED":
        said.append(f"its flow run is {run.name}, but no one runs it")
    return Standing.DEAD, "dead: " + "; ".join(said)


def _desertion(controller: Controller) -> str:
    how = "died" if controller.dead else f"has not renewed its lease, which ended {-controller.seconds:.0f} s ago"
    return f"its controller {how} ({controller})"


def _awaited(run: Run, now: datetime, grace: timedelta) -> str | None:
    """Return why a flow run needs no recovery because it has not begun, or has only just; None if it may need it."""
    if run.type in ("SCHEDULED", "PAUSED"):
        return f"Prefect has its flow run {run.name}" + (f", due {run.due:%Y-%m-%d %H:%M:%S} UTC" if run.due else "")
    if run.type == "PENDING" and run.deployed:
        grace = max(grace, _STARTS_WITHIN)
    if run.type in ("PENDING", "RUNNING") and now - run.at < grace:
        return f"its flow run is {run.name} since {(now - run.at).total_seconds():.0f} s"
    return None
