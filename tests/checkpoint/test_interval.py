"""The interval between checkpoints follows from what they cost."""

import pytest

from nasflow.checkpoint.interval import Interval


def test_the_interval_of_young() -> None:
    interval = Interval(3600.0)
    assert interval.is_over(0.0, 4), "before the first checkpoint nothing is known"
    interval.begin(10.0, again=False)
    interval.copied(0.3, 4)
    interval.written(0.2)
    assert interval.cost(4) == pytest.approx(0.5)
    assert interval.seconds(4) == pytest.approx(60.0)
    assert interval.seconds(1) == pytest.approx(30.0), "fewer states cost less"
    assert not interval.is_over(69.9, 4)
    assert interval.is_over(70.1, 4)
    interval.begin(50.0, again=False)
    assert interval.is_over(70.1, 4), "trials that enter meanwhile change nothing for the others"
    interval.begin(71.0, again=True)
    assert not interval.is_over(130.0, 4)


def test_the_cost_is_the_mean() -> None:
    interval = Interval(86_400.0)
    for seconds in (0.1, 0.2, 0.3):
        interval.copied(seconds, 2)
    assert interval.cost(2) == pytest.approx(0.2)
