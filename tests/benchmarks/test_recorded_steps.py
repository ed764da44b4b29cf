"""The recorded steps that a benchmark compares with the tape are right."""

import pytest
import torch

from benchmarks.merging.workloads import w1_mlps
from benchmarks.recorded_steps import Recorded, by_autograd, measure, reach
from nasflow.native import library


def test_replayed_steps_are_those_of_autograd(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_library", lambda: None)
    group = w1_mlps.make_group("a", 4, 1, 0)
    (one, batch), (other, same) = reach(group), reach(group)
    assert all(torch.equal(a, b) for a, b in zip(batch, same, strict=True))
    for _ in range(4):
        by_autograd(one, batch)
    record = Recorded(lambda: by_autograd(other, same))
    for _ in range(3):
        record.replay()
    pairs = list(zip(one.trained_tensors, other.trained_tensors, strict=True))
    assert pairs and all(torch.equal(a, b) for a, b in pairs)


def test_it_measures() -> None:
    tape, *ratios, operations, _ = measure(w1_mlps.make_group("a", 4, 1, 0), 3)
    assert float(tape) > 0 and int(operations) > 20
    assert all(float(ratio.removesuffix("x")) > 0 for ratio in ratios)
