"""Durations as a config gives them."""

import pytest
from pydantic import TypeAdapter, ValidationError

from nasflow.config.durations import Duration, duration_text
from nasflow.config.limits import LimitsConfig

DURATION: TypeAdapter[float] = TypeAdapter(Duration)


@pytest.mark.parametrize(
    ("given", "seconds", "text"),
    [
        (90, 90, "1m30s"),
        (0.5, 0.5, "0.5s"),
        ("90s", 90, "1m30s"),
        ("10m", 600, "10m"),
        (" 2h ", 7200, "2h"),
        ("1h30m", 5400, "1h30m"),
        ("1h 30m", 5400, "1h30m"),
        ("1.5h", 5400, "1h30m"),
        ("2d", 172800, "2d"),
    ],
)
def test_a_duration(given, seconds, text):
    assert DURATION.validate_python(given) == seconds
    assert duration_text(seconds) == text
    assert DURATION.validate_python(text) == seconds


@pytest.mark.parametrize(
    "given", ["", "h", "10", "10 minutes", "1m1h", "-5s", 0, -1, "0s", "11y", 1e12, "999999999d", True]
)
def test_no_duration(given):
    with pytest.raises(ValidationError):
        DURATION.validate_python(given)


def test_a_limit_survives_json():
    limits = LimitsConfig.model_validate({"epoch": "10m", "stalled": None})
    assert LimitsConfig.model_validate_json(limits.model_dump_json()) == limits
    assert (limits.epoch, limits.stalled, limits.trial) == (600.0, None, None)
