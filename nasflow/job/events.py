"""The events of a running job: `events.jsonl`, one JSON object per line, appended and flushed, never rewritten.

The file is all that a training service must bring back. Every event may be read again: a trial's epoch is reported
when it is trained, and again (`replayed`) by every job that resumes from its checkpoint, with the same metrics.
"""

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, Field, FiniteFloat, TypeAdapter, field_serializer, model_validator

from nasflow.clean_text import CleanText
from nasflow.job.disk_full import wait_for_room
from nasflow.json_metrics import json_metrics
from nasflow.kernel_costs import MOST_TOLD, Figures, Place

_Count = Annotated[int, Field(ge=0, lt=2**31)]
"""A number of a trial or of epochs: what every store can hold."""
MOST_CLASSES = 50
"""Of a confusion matrix; larger ones are for no one to read."""
_AT_ONCE = 2**23  # bytes
_SHOWN = 80  # of a line that is too long
_YEAR_9999 = 2.5e11  # seconds since 1970, the last that a date can have


class _Event(BaseModel):
    at: float = Field(default_factory=time.time, ge=0, le=_YEAR_9999, description="seconds since 1970")


class Started(_Event):
    """The job's process is up and has its members.

    `resumed` has each trial's finished epochs, 0 for a new one; trials in `waiting` begin later.
    """

    kind: Literal["started"] = "started"
    pid: int = Field(default_factory=os.getpid)
    resumed: dict[_Count, _Count]
    waiting: list[_Count] = []


class PlannedUnit(BaseModel):
    """Members that are stepped together.

    Attributes:
        operations: the operations of all members, if they ran one by one.
        fused: how many of those run together with others, or once for several members.
        kernels: how many steps each kernel runs.
        gathers: how often a value is assembled from several.
        seconds: expected of a step's forward and backward; None where nothing was measured.
        seconds_alone: the same if each member were stepped by itself.
    """

    members: list[int]
    operations: int
    fused: int
    kernels: dict[str, int]
    gathers: int
    seconds: float | None = None
    seconds_alone: float | None = None


DIFFERS = "merged it does not compute what it does by itself"
"""The beginning of the reason of a trial that a comparison found to differ."""


class Planned(_Event):
    """Units were formed. `alone` has the reason of each trial that is in no unit with others."""

    kind: Literal["planned"] = "planned"
    units: list[PlannedUnit]
    alone: dict[_Count, CleanText]

    @property
    def differing(self) -> dict[int, str]:
        """The trials of `alone` that differed in a comparison, with the reasons."""
        return {trial: reason for trial, reason in self.alone.items() if reason.startswith(DIFFERS)}


class Measured(_Event):
    """The costs of kernels by which the job plans, of those that it was not given."""

    kind: Literal["measured"] = "measured"
    place: Place
    figures: Figures = Field(max_length=MOST_TOLD)


class Entered(_Event):
    """A trial that waited begins, or resumes from its checkpoint."""

    kind: Literal["entered"] = "entered"
    trial: _Count


class Epoch(_Event):
    """A trial finished its `epoch` (from 1) and is checkpointed. A metric that is not finite is None."""

    kind: Literal["epoch"] = "epoch"
    trial: _Count
    epoch: _Count
    metrics: dict[CleanText, float | None]
    seconds: FiniteFloat = 0.0
    replayed: bool = False

    @field_serializer("metrics")
    def _finite(self, metrics: dict[str, float | None]) -> dict[str, float | None]:
        return json_metrics(metrics)


class Final(_Event):
    """A trial ended well, with these final metrics: after its last epoch, or before (`stopped_early`).

    It stops early by its own early stopping, or because the job's pruner compared it with the others (`pruned`).
    """

    kind: Literal["final"] = "final"
    trial: _Count
    epochs: _Count
    metrics: dict[CleanText, float]
    stopped_early: bool = False
    pruned: bool = False


class Confusion(_Event):
    """How many test samples of each class (row) a trial took for each class (column)."""

    kind: Literal["confusion"] = "confusion"
    trial: _Count
    counts: Annotated[list[Annotated[list[_Count], Field(max_length=MOST_CLASSES)]], Field(max_length=MOST_CLASSES)]

    @model_validator(mode="after")
    def _is_square(self) -> "Confusion":
        if any(len(row) != len(self.counts) for row in self.counts):
            raise ValueError("counts is no square")
        return self


class Evicted(_Event):
    """A trial failed in `epoch` and left the job; the others go on. The epoch is 0 if it could not be built."""

    kind: Literal["evicted"] = "evicted"
    trial: _Count
    epoch: _Count
    error: CleanText


class Alert(_Event):
    """A problem that needs attention while the job goes on, in a sentence."""

    kind: Literal["alert"] = "alert"
    text: CleanText


class Ended(_Event):
    """The job has nothing left to do. A process that exits without this event has crashed.

    The error is attributed to `infrastructure` if the same job may succeed at another time or place. The job is
    `refused` for a mistake of its user, which the error describes in a sentence. It was `preempted` if it was asked to
    end and has saved what it had trained since its start.
    """

    kind: Literal["ended"] = "ended"
    error: CleanText | None = Field(
        default=None, description="what kept the whole job from running, None if nothing did"
    )
    infrastructure: bool = False
    refused: bool = False
    preempted: bool = False


Event = Annotated[
    Started | Planned | Measured | Entered | Epoch | Final | Confusion | Evicted | Alert | Ended,
    Field(discriminator="kind"),
]
_EVENT: TypeAdapter[Event] = TypeAdapter(Event)


def parse_event(line: str) -> Event:
    """Return the event in one line of an events file. Raises ValidationError if it is none that a study can record."""
    return _EVENT.validate_json(line)


class EventWriter:
    """Appends events to a file; `write` returns once the operating system has the event. Threads may share it.

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
    """Return the complete lines of `path` from byte `offset`, and the offset after them; none for a missing file."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            data = file.read(_AT_ONCE)
            if len(data) == _AT_ONCE and b"\n" not in data:
                return _pass_over(file, data[:_SHOWN], offset)
    except FileNotFoundError:
        return [], offset
    whole = data[: data.rfind(b"\n") + 1]
    return whole.decode(errors="replace").split("\n")[:-1], offset + len(whole)  # not at U+2028, as splitlines


def each_line(read: Callable[[int], tuple[list[str], int]]) -> Iterator[str]:
    """Yield all lines that `read` returns in parts: given an offset, some lines and the offset after them."""
    lines, offset = read(0)
    while lines:
        yield from lines
        lines, offset = read(offset)


def _pass_over(file: BinaryIO, beginning: bytes, offset: int) -> tuple[list[str], int]:
    """Return the beginning of a line and the offset after its end; nothing before it has one."""
    while data := file.read(_AT_ONCE):
        if (end := data.find(b"\n")) >= 0:
            return [beginning.decode(errors="replace")], file.tell() - len(data) + end + 1
    return [], offset


def _ends_in_newline(path: Path) -> bool:
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"
