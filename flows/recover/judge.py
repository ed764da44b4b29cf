"""Whether a search is dead, from facts: its study's record, its lease, and its flow run in Prefect."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from pathlib import Path
from uuid import UUID

from nasflow.study.lease import Controller

GRACE = timedelta(seconds=60)
"""A flow run that began so recently may not have come to take its study."""

_ON_PURPOSE = {"CANCELLED": "was cancelled", "CANCELLING": "is being cancelled", "FAILED": "failed"}


class Standing(StrEnum):
    """What `nasflow recover` does about a search."""

    WELL = "well"
    LEFT = "left alone"
    DEAD = "dead"


@dataclass(frozen=True)
class Run:
    """What Prefect knows of the newest flow run of a search.

    Attributes:
        type: of its state, as Prefect names it: RUNNING, CRASHED, ...
        name: of its state, for people.
        at: when it came into that state.
        id: of the flow run.
        due: when Prefect is to start it, if that is still to come.
        deployed: a worker of its deployment can take it up again.
    """

    type: str
    name: str
    at: datetime
    id: UUID | None = None
    due: datetime | None = None
    deployed: bool = False


@dataclass(frozen=True)
class Facts:
    """What is known of a search.

    Attributes:
        finished: its record leaves nothing to run.
        folder: of its jobs and checkpoints; None if it is on this machine, or there never was one.
        holder: the controller that holds the study.
        deserter: the controller that died with it.
        run: None if Prefect knows of none since the study was taken last.
    """

    finished: bool
    folder: Path | None = None
    holder: Controller | None = None
    deserter: Controller | None = None
    run: Run | None = None

    @property
    def in_doubt(self) -> bool:
        """Prefect's word is wanted."""
        return not self.finished and self.holder is None


def judge(facts: Facts, now: datetime, grace: timedelta = GRACE) -> tuple[Standing, str]:
    """Whether the search is to be resumed, and why or why not."""
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
    how = "died" if controller.dead else f"has not been heard of since its lease ended {-controller.seconds:.0f} s ago"
    return f"its controller {how} ({controller})"


def _awaited(run: Run, now: datetime, grace: timedelta) -> str | None:
    """What is to come of a flow run that has not begun, or has only just."""
    if run.type in ("SCHEDULED", "PAUSED"):
        return f"Prefect has its flow run {run.name}" + (f", due {run.due:%Y-%m-%d %H:%M:%S} UTC" if run.due else "")
    if run.type in ("PENDING", "RUNNING") and now - run.at < grace:
        return f"its flow run is {run.name} since {(now - run.at).total_seconds():.0f} s"
    return None
