"""The events of a job, which its own code may have written to."""

import json
import random
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from pydantic import ValidationError

from nasflow.job.events import (
    Alert,
    Ended,
    Entered,
    Epoch,
    EventWriter,
    Evicted,
    Final,
    Measured,
    Planned,
    PlannedUnit,
    Started,
    each_line,
    parse_event,
    read_lines,
)
from tests.fuzz.mutate import reshape_json
from tests.fuzz.target import Target

_UNIT = PlannedUnit(members=[3, 4], operations=9, fused=8, kernels={"loop": 1}, gathers=0, seconds=0.5)
_EVENTS = [
    Started(at=1e9, pid=7, resumed={3: 0, 4: 2}, waiting=[5]),
    Planned(at=1e9, units=[_UNIT], alone={7: "it can't be traced"}),
    Measured(at=1e9, place="0123456789abcdef", figures={"Loop x2: Linear": 1e-5, "Matmul x2: Linear": None}),
    Entered(at=1e9, trial=5),
    Epoch(at=1e9, trial=3, epoch=1, metrics={"val_loss": 0.25, "val_accuracy": None}, seconds=0.5),
    Final(at=1e9, trial=3, epochs=1, metrics={"val_loss": 1e-300}, stopped_early=True),
    Evicted(at=1e9, trial=4, epoch=2, error="ValueError: über\n  File 'x'"),
    Alert(at=1e9, text="the disk is full"),
    Ended(at=1e9),
]
_SEED = b"".join(json.dumps(event.model_dump(mode="json")).encode() + b"\n" for event in _EVENTS)
_TOKENS = (
    b"\n",
    b"[",
    b'{"a":',
    b"\\ud800",
    b"\\u0000",
    b"\0",
    b"NaN",
    b"-Infinity",
    b"1e999",
    b"null",
    b'"kind": "ended", ',
    b"\xff",
)


def _reshape(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    place = rng.randrange(len(lines))
    lines[place] = reshape_json(rng, lines[place])
    return b"\n".join(lines)


def _read(data: bytes, folder: Path) -> int:
    file = folder / "events.jsonl"
    file.write_bytes(data)
    EventWriter(file).write(Ended())
    events = []
    for line in each_line(partial(read_lines, file)):
        try:
            events.append(parse_event(line))
        except ValidationError as error:
            assert error.error_count()  # what is logged of it
    assert isinstance(events[-1], Ended), "what is written after damage is read"
    for event in events:
        datetime.fromtimestamp(event.at, UTC)
        json.dumps(event.model_dump(mode="json"))
    return len(events) - 1


TARGET = Target("events", [_SEED], _read, (), _TOKENS, _reshape)
