"""When a host that refuses a login is asked again, by a clock of the tests."""

from itertools import pairwise
from types import SimpleNamespace

from nasflow.training_service.ssh.connect import refusals
from nasflow.training_service.ssh.connect.errors import Refused, Unreachable
from nasflow.training_service.ssh.connect.refusals import Refusals


def test_pauses_double_up_to_ten_minutes_and_a_login_ends_them(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(refusals, "time", SimpleNamespace(monotonic=lambda: clock.now))
    refused, tried = Refusals(), list[float]()
    answers: list[type[Exception] | None] = [*[Refused] * 7, Unreachable, None, Refused, None]

    def log_in() -> None:
        tried.append(clock.now)
        if (answer := answers.pop(0)) is not None:
            raise answer("no")

    while answers:
        try:
            refused.spaced(log_in)
        except (Refused, Unreachable) as error:
            assert str(error) == "no"
        clock.now += 10.0
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses == [30, 60, 120, 240, 480, 600, 600, 10, 10, 30]
