"""The soak test, shortened: it runs to its end, kills, measures, and sees what grows."""

import dataclasses

import pytest

from tests.soak.command import soak
from tests.soak.measure import Sample, growths


def samples(**growing: float) -> list[Sample]:
    """An hour of one process, of which some figures grow by so much each minute."""
    flat = Sample(0.0, "controller", 0.0, 300.0, 40, 20, 1.0)
    return [
        dataclasses.replace(
            flat,
            seconds=60.0 * minute,
            since=60.0 * minute + 61,
            **{figure: getattr(flat, figure) + rate * minute for figure, rate in growing.items()},
        )
        for minute in range(61)
    ]


def test_what_grows_is_seen():
    assert [growth.ratio for growth in growths(samples())] == [1.0, 1.0, 1.0]
    grown = {growth.figure: growth.ratio for growth in growths(samples(memory=2.0, files=1))}
    assert grown["memory"] > 1.25 and grown["files"] > 1.9 and grown["threads"] == 1.0


@pytest.mark.long
def test_a_short_one(tmp_path, capsys):
    assert soak(tmp_path, trials=32, per_round=16, delay=0.05, every=8.0) >= 0
    printed = capsys.readouterr().out
    assert "32 trials (trained)" in printed
    assert (tmp_path / "soak.html").stat().st_size > 10_000
    assert len((tmp_path / "soak.csv").read_text().splitlines()) > 6
