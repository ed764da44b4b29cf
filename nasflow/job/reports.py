"""Where a trial's own program finds what it trains and reports its metrics: files named by environment variables.

The program may be written in any language. Imports only the standard library, so that a report takes little time.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path

TRIAL = "NASFLOW_TRIAL"
"""Names the file that says what to train, one JSON object: trial, architecture, params, seed, epochs, reported."""
METRICS = "NASFLOW_METRICS"
"""Names the file to which the program appends a line of JSON for each epoch."""
SEED = "NASFLOW_SEED"
"""The trial's seed."""
CHECKPOINTS = "NASFLOW_CHECKPOINTS"
"""Names the folder that is the program's own, and is still there when it is started again."""

EPOCH = "epoch"
"""The key of a line that says which epoch its metrics are of, from 1."""
_SHOWN = 80


def parse_report(line: str) -> tuple[int | None, dict[str, float]]:
    """Return the epoch that a line names, if it does, and its metrics. Raises ValueError, a clause that says why."""
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        raise ValueError(f"it is no JSON: {line[:_SHOWN]!r}") from None
    if not isinstance(values, dict):
        raise ValueError(f"it is no JSON object of metrics by name: {line[:_SHOWN]!r}")
    epoch = values.pop(EPOCH, None)
    if epoch is not None and not (type(epoch) is int and epoch >= 1):
        raise ValueError(f"'{EPOCH}' is {epoch!r:.80}; it should be a whole number from 1 on")
    if not values:
        raise ValueError("it has no metric")
    return epoch, {name: _number(name, value) for name, value in values.items()}


def append_report(path: Path, metrics: Mapping[str, float]) -> None:
    """Append a line with these metrics; it is there as a whole or not at all, whoever else appends."""
    place = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(place, json.dumps(dict(metrics)).encode() + b"\n")
    finally:
        os.close(place)


def _number(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"metric '{name[:_SHOWN]}' is {value!r:.80}, which is no number")
    try:
        return float(value)
    except OverflowError:
        raise ValueError(f"metric '{name[:_SHOWN]}' is larger than any float") from None
