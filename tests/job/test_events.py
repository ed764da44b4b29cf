"""The events file: whole lines, appended, readable from any offset."""

import json
import math
import tracemalloc
from functools import partial
from pathlib import Path

import pytest
from pydantic import ValidationError

from nasflow.job.events import (
    Ended,
    Epoch,
    EventWriter,
    Evicted,
    Final,
    Planned,
    PlannedUnit,
    Started,
    each_line,
    parse_event,
    read_lines,
)

EVENTS = [
    Started(resumed={3: 0, 4: 2}),
    Planned(
        units=[
            PlannedUnit(members=[3, 4], operations=9, fused=8, kernels={"loop": 1}, gathers=0, seconds=0.1 + 0.2),
            PlannedUnit(members=[5], operations=2, fused=0, kernels={}, gathers=1),
        ],
        alone={7: "it can't be traced: | ü"},
    ),
    Epoch(trial=3, epoch=1, metrics={"val_loss": 0.1 + 0.2}, seconds=0.5),
    Epoch(trial=4, epoch=1, metrics={"val_loss": None}, replayed=True),
    Final(trial=3, epochs=1, metrics={"val_loss": 1e-300}, stopped_early=True),
    Evicted(trial=4, epoch=2, error="ValueError: \u2028 über\n  File 'x'\nNaN"),
    Ended(),
]


def written(path: Path) -> None:
    writer = EventWriter(path)
    for event in EVENTS:
        writer.write(event)
    writer.close()


def test_round_trip(tmp_path: Path) -> None:
    written(tmp_path / "events.jsonl")
    lines, offset = read_lines(tmp_path / "events.jsonl")
    assert [parse_event(line) for line in lines] == EVENTS
    assert offset == (tmp_path / "events.jsonl").stat().st_size
    assert read_lines(tmp_path / "events.jsonl", offset) == ([], offset)


def test_every_offset_gives_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    written(path)
    offset = 0
    for index, event in enumerate(EVENTS):
        lines, end = read_lines(path, offset)
        assert [parse_event(line) for line in lines] == EVENTS[index:]
        offset += len(event_line(event))
    assert offset == end


def event_line(event: Started | Planned | Epoch | Final | Evicted | Ended) -> bytes:
    return json.dumps(event.model_dump(mode="json")).encode() + b"\n"


def test_numbers_json_has_no_name_for_become_null(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "events.jsonl")
    writer.write(Epoch(trial=0, epoch=1, metrics={"a": math.nan, "b": math.inf, "c": -math.inf, "d": 1.5}))
    writer.close()
    [line], _ = read_lines(tmp_path / "events.jsonl")
    event = parse_event(line)
    assert isinstance(event, Epoch)
    assert event.metrics == {"a": None, "b": None, "c": None, "d": 1.5}


def test_an_event_is_readable_as_soon_as_it_is_written(tmp_path: Path) -> None:
    writer = EventWriter(tmp_path / "events.jsonl")
    offset = 0
    for event in EVENTS:
        writer.write(event)
        [line], offset = read_lines(tmp_path / "events.jsonl", offset)
        assert parse_event(line) == event
    writer.close()


@pytest.mark.parametrize("torn", [1, 17])
def test_a_torn_line_is_kept_apart_from_the_next(tmp_path: Path, torn: int) -> None:
    path = tmp_path / "events.jsonl"
    written(path)
    whole, offset = read_lines(path)
    with path.open("ab") as file:
        file.write(event_line(EVENTS[1])[:torn])
    assert read_lines(path) == (whole, offset), "half a line is not given out"
    written(path)
    lines, _ = read_lines(path, offset)
    assert len(lines) == 1 + len(EVENTS)
    assert [parse_event(line) for line in lines[1:]] == EVENTS
    with pytest.raises(ValueError, match="JSON"):
        parse_event(lines[0])


def test_a_missing_file_has_no_lines_yet(tmp_path: Path) -> None:
    assert read_lines(tmp_path / "events.jsonl", 12) == ([], 12)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 100_000,
        '{"kind": "ended", "x": ' + "[" * 100_000 + "]" * 100_000 + "}",
        '{"kind": "entered", "trial": ' + "9" * 5000 + "}",
        '{"kind": "ended", "at": 1e999}',
        '{"kind": "ended", "at": NaN}',
        '{"kind": "ended", "at": 1e15}',
        '{"kind": "ended", "at": -1}',
        '{"kind": "ended", "error": "\\ud800"}',
        '{"kind": ["ended"]}',
        "\0",
    ],
    ids=lambda text: text[:30],
)
def test_lines_of_others_are_no_events(text: str) -> None:
    """Whatever a job's own code wrote there; times beyond a calendar's, too."""
    with pytest.raises(ValidationError):
        parse_event(text)


def test_a_large_file_is_read_in_parts(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    line = b'{"kind": "entered", "trial": 1}\n'
    count = 20 * 2**20 // len(line)
    path.write_bytes(line * count)
    first, offset = read_lines(path)
    assert 0 < len(first) < count
    assert offset == len(first) * len(line)
    assert sum(1 for _ in each_line(partial(read_lines, path))) == count


def test_a_line_that_is_too_long_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    short = event_line(EVENTS[0])
    with path.open("wb") as file:
        file.write(short + b'{"kind": "ended", "error": "')
        for _ in range(40):
            file.write(b"x" * 2**20)
        assert list(each_line(partial(read_lines, path))) == [short.decode().strip()], "it may still be written"
        file.write(b'"}\n' + short)
    tracemalloc.start()
    before, long, after = each_line(partial(read_lines, path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2**26
    assert parse_event(before) == parse_event(after) == EVENTS[0]
    assert len(long) < 1000
    with pytest.raises(ValidationError):
        parse_event(long)
