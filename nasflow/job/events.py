"""What a job says while it runs: `events.jsonl`, one JSON object a line, appended and flushed, never rewritten.

The file is all that a training service must bring back. Every event may be read again: a trial's epoch is told once
when it was trained, and once more (`replayed`) by every job that goes on from its checkpoint, with the same metrics.
"""

import json
import os
import threading
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, TypeAdapter, field_serializer

from nasflow.job.disk_full import wait_for_room
from nasflow.metrics import json_metrics


class _Event(BaseModel):
    at: float = Field(default_factory=time.time, description="seconds since 1970")


class Started(_Event):
    """The job's process is up and has its members.

    `resumed` gives each trial's finished epochs, 0 for a new one; those in `waiting` are to begin later.
    """

    kind: Literal["started"] = "started"
    pid: int = Field(default_factory=os.getpid)
    resumed: dict[int, int]
    waiting: list[int] = []


class PlannedUnit(BaseModel):
    """Members whose steps are made together.

    Attributes:
        operations: of all of them, as they would run one by one.
        fused: of those, the ones that run together with others, or once for several members.
        kernels: how many steps each one runs.
        gathers: how often a value is put together from several.
        seconds: expected of a step's forward and backward; None where nothing was measured.
        seconds_alone: the same if each member made its step by itself.
    """

    members: list[int]
    operations: int
    fused: int
    kernels: dict[str, int]
    gathers: int
    seconds: float | None = None
    seconds_alone: float | None = None


DIFFERS = "merged it does not compute what it does by itself"
"""How the reason begins of a trial that a comparison has found to differ."""


class Planned(_Event):
    """Units were formed. `alone` says of each trial that is in no unit with others why it is not."""

    kind: Literal["planned"] = "planned"
    units: list[PlannedUnit]
    alone: dict[int, str]

    @property
    def differing(self) -> dict[int, str]:
        """Those of `alone` that a comparison has found to differ."""
        return {trial: reason for trial, reason in self.alone.items() if reason.startswith(DIFFERS)}


class Entered(_Event):
    """A trial that waited begins, or goes on from its checkpoint."""

    kind: Literal["entered"] = "entered"
    trial: int


class Epoch(_Event):
    """A trial finished its `epoch` (from 1) and is checkpointed. A metric that is not finite is None."""

    kind: Literal["epoch"] = "epoch"
    trial: int
    epoch: int
    metrics: dict[str, float | None]
    seconds: float = 0.0
    replayed: bool = False

    @field_serializer("metrics")
    def _finite(self, metrics: dict[str, float | None]) -> dict[str, float | None]:
        return json_metrics(metrics)


class Final(_Event):
    """A trial ended well, with these final metrics: after its last epoch, or before (`stopped_early`).

    It stops early by its own early stopping, or because the job's pruner compared it with the others (`pruned`).
    """

    kind: Literal["final"] = "final"
    trial: int
    epochs: int
    metrics: dict[str, float]
    stopped_early: bool = False
    pruned: bool = False


class Evicted(_Event):
    """A trial was taken out of the job in `epoch` by its own doing; the others go on."""

    kind: Literal["evicted"] = "evicted"
    trial: int
    epoch: int
    error: str


class Alert(_Event):
    """Something that someone should look after while the job goes on, in a sentence."""

    kind: Literal["alert"] = "alert"
    text: str


class Ended(_Event):
    """The job has nothing left to do. A process that exits without this event has crashed.

    An error is laid to the `infrastructure` if the same job may come to its end another time, or in another place. The
    job is `refused` for a mistake of its user's, which the error says in a sentence.
    """

    kind: Literal["ended"] = "ended"
    error: str | None = Field(default=None, description="what kept the whole job from running, None if nothing did")
    infrastructure: bool = False
    refused: bool = False


Event = Annotated[Started | Planned | Entered | Epoch | Final | Evicted | Alert | Ended, Field(discriminator="kind")]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(line: str) -> Event:
    """The event in one line of an events file."""
    return _EVENT.validate_json(line)


class EventWriter:
    """Appends events to a file; each is with the operating system when `write` returns. Threads may share it.

    If the disk is full, `write` waits for room.
    """

    def __init__(self, path: Path):
        self._file = path.open("ab", buffering=0)
        self._lock = threading.Lock()
        if self._file.tell() and not _ends_in_newline(path):
            self._append(b"\n")  # a process killed while writing left a torn line: keep it apart from the next

    def write(self, event: _Event) -> None:
        """Append one event."""
        text = json.dumps(event.model_dump(mode="json"), allow_nan=False)
        with self._lock:
            self._append(text.encode() + b"\n")

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[wait_for_room(partial(self._file.write, rest)) :]


def read_lines(path: Path, offset: int = 0) -> tuple[list[str], int]:
    """The whole lines of `path` from byte `offset` on, and the offset behind them. A missing file has no lines yet."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read()
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace").splitlines(), offset + len(whole)


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
