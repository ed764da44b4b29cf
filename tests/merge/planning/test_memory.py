"""Units are no larger than the memory that is free."""

from types import SimpleNamespace

import psutil
import pytest
import torch
from torch import nn

from nasflow.merge.planning import memory
from nasflow.merge.planning.memory import members_that_fit
from nasflow.merge.trace.graph import trace
from nasflow.merge.trace.shape_inference import Spec
from nasflow.system.gpu_share import GPU_SHARE

CPU = torch.device("cpu")


@pytest.mark.parametrize(("free", "members"), [(15 * 10**5, 3), (10**5, 1), (0, 1)])
def test_as_many_as_fit_of_the_largest(free: int, members: int, monkeypatch: pytest.MonkeyPatch) -> None:
    x = Spec.batch(torch.zeros(64, 100))
    graphs = [trace(nn.Linear(100, width), x) for width in (10, 125)]
    # the wider one: 64 x (100 + 125) activations twice, and 101 x 125 weights five times, in float32
    assert int(0.8 * 15 * 10**5 / (4 * (2 * 64 * 225 + 5 * 101 * 125))) == 3
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=free))
    assert members_that_fit([graphs], CPU) == members


@pytest.mark.parametrize(
    ("card", "slots", "members"),
    [
        ((80, 0, 0), 1, 174),
        ((80, 0, 0), 2, 87),  # the other slot's half is not counted on, though nobody uses it yet
        ((10, 0, 0), 2, 21),  # and here it is in use
        ((60, 20, 5), 1, 163),  # what torch keeps for later is free
        ((60, 20, 20), 2, 43),
        ((0, 80, 80), 1, 1),
    ],
)
def test_a_slot_of_a_shared_gpu_counts_on_its_part(
    card: tuple[int, int, int], slots: int, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In units of a million bytes, of a card with 80: free, kept by torch, and in use of that."""
    free, reserved, allocated = card
    x = Spec.batch(torch.zeros(64, 100))
    graph = trace(nn.Linear(100, 125), x)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free * 10**6, 80 * 10**6))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: reserved * 10**6)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda device: allocated * 10**6)
    monkeypatch.setenv(GPU_SHARE, str(1 / slots))
    assert members_that_fit([[graph]], torch.device("cuda")) == members


def test_a_container_counts_on_its_part(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(nn.Linear(500, 500), Spec.batch(torch.zeros(1, 500)))
    monkeypatch.setattr(memory, "available_memory", lambda: 26 * 10**6)
    assert members_that_fit([[graph]], CPU) == 4


@pytest.mark.parametrize(("kept", "members"), [(0, 4), (1, 3), (2, 2)])
def test_averages_and_accumulated_gradients_take_memory(
    kept: int, members: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = trace(nn.Linear(500, 500), Spec.batch(torch.zeros(1, 500)))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=26 * 10**6))
    # 500 x 501 weights of 4 bytes, 1 MB: five of each, and as many as are kept
    assert members_that_fit([[graph]], CPU, kept) == members


def test_an_idle_machine_has_room() -> None:
    graph = trace(nn.Linear(4, 2), Spec.batch(torch.zeros(8, 4)))
    assert members_that_fit([[graph]], CPU) > 1000
