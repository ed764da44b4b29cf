"""Durations in a config: seconds as a number, or a text such as `90s`, `10m`, `1h30m`, `2d`."""

import re
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema

_UNITS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_TEXT = re.compile("".join(rf"(?:(\d{{1,9}}(?:\.\d{{1,9}})?)\s*{unit}\s*)?" for unit in _UNITS))
_LONGEST = 3650 * 86400.0  # ten years


def _seconds(value: Any) -> Any:
    """Return the seconds that a text means; anything else is left for pydantic to check."""
    if isinstance(value, bool):
        raise ValueError("is no duration")
    if not isinstance(value, str):
        return value
    match = _TEXT.fullmatch(value.strip())
    if match is None or not any(match.groups()):
        raise ValueError("is no duration; give seconds, or a text such as 90s, 10m, 1h30m, 2d")
    return sum(float(count) * seconds for count, seconds in zip(match.groups(), _UNITS.values(), strict=True) if count)


Duration = Annotated[
    float,
    Field(gt=0, le=_LONGEST),
    BeforeValidator(_seconds),
    WithJsonSchema({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}], "title": "Duration"}),
]
"""A positive number of seconds; a config may give it as a text."""


def duration_text(seconds: float) -> str:
    """Return a duration as a config gives it, e.g. `1h30m`; fractions of a second only below a minute."""
    if seconds < 60:
        return f"{seconds:g}s"
    left, parts = round(seconds), []
    for unit, size in _UNITS.items():
        count, left = divmod(left, size)
        parts += [f"{count}{unit}"] if count else []
    return "".join(parts)
