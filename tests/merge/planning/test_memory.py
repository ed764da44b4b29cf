"""Units are no larger than the memory that is free."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn

from nasflow.merge.planning.memory import members_that_fit
from nasflow.merge.trace.graph import trace
from nasflow.merge.trace.shape_inference import Spec

CPU = torch.device("cpu")


@pytest.mark.parametrize(("free", "members"), [(10**6, 3), (10**5, 1), (0, 1)])
def test_as_many_as_fit_of_the_largest(free: int, members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Spec.batch(torch.zeros(64, 100))
    graphs = [trace(nn.Linear(100, width), x) for width in (10, 125)]
    # the wider one: 64 x (100 + 125) activations and 101 x 125 weights, each twice, in float32
    assert int(0.8 * 10**6 / (2 * 4 * (64 * 225 + 101 * 125))) == 3
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    assert members_that_fit([graphs], CPU) == members


def test_an_idle_machine_has_room() -> None:
    graph = trace(nn.Linear(4, 2), Spec.batch(torch.zeros(8, 4)))
    assert members_that_fit([[graph]], CPU) > 1000
