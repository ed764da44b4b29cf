"""When a host that refuses a login is asked again, by a clock of the tests."""

import math
from itertools import pairwise
from types import SimpleNamespace

import pytest

from nasflow.errors import ServiceError
from nasflow.training_service.ssh.connect import refusals
from nasflow.training_service.ssh.connect.errors import Refused, Unreachable
from nasflow.training_service.ssh.connect.refusals import Refusals


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


@pytest.mark.parametrize(
    ("longest", "expected"),
    [
        (math.inf, [30, 60, 120, 240, 480, 600, 600, 10, 10, 10, 30]),
        (75.0, [30, 60, 80, 80, 80, 80, 80, 10, 10, 10, 30]),  # it is asked every 10 s
        (5.0, [30, 30, 30, 30, 30, 30, 30, 10, 10, 10, 30]),
    ],
)
def test_pauses_double_up_to_a_limit_and_a_login_ends_them(clock, longest, expected):
    """Only a refused login has one after it: a host whose key is not known was asked for none."""
    refused, tried = Refusals(), list[float]()
    answers: list[type[ServiceError] | None] = [*[Refused] * 7, Unreachable, ServiceError, None, Refused, None]

    def log_in() -> None:
        tried.append(clock.now)
        if (answer := answers.pop(0)) is not None:
            raise answer("no")
        refused.end()

    while answers:
        try:
            refused.spaced(log_in, longest)
        except ServiceError as error:
            assert str(error) == "no"
        clock.now += 10.0
    assert [after - before for before, after in pairwise(tried)] == expected


def test_a_login_elsewhere_ends_a_pause(clock):
    refused, tried = Refusals(), list[float]()

    def log_in() -> None:
        tried.append(clock.now)
        raise Refused("no")

    for _ in range(2):
        with pytest.raises(Refused):
            refused.spaced(log_in, math.inf)
        clock.now += 10.0
        refused.end()
    assert tried == [0.0, 10.0]
