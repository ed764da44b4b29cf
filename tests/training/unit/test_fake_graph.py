"""A CUDA graph could replay a fused unit's steps: they are the same operations, on memory that stays where it is."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.training.unit.fused import FusedUnit
from tests.fake_graph import FakeGraph, NotCapturableError, outside
from tests.training.fused_jobs import fused_members
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train

NUMBERS: dict[str, Any] = {"epochs": 10, "kind": "regression", "data": {"target": "fused_spaces.py:numbers"}}
BAD = 2


class Graphed:
    """Puts a graph around the steps of fused units: after two real ones, for each size of batches.

    What the host does after a step, to count it and to step schedules, is not in the graph.
    """

    def __init__(self, patch: pytest.MonkeyPatch):
        self._train_batch, self._end_steps = FusedUnit.train_batch, FusedUnit._end_steps
        self._graphs: dict[Any, FakeGraph] = {}
        self._seen: dict[Any, int] = {}
        self._batches: dict[Any, tuple[torch.Tensor, torch.Tensor]] = {}
        patch.setattr(FusedUnit, "train_batch", self._patched("_step"))
        patch.setattr(FusedUnit, "_end_steps", self._patched("_end"))

    def _patched(self, name: str) -> Callable[..., None]:
        method = getattr(self, name)

        def run(*args: Any) -> None:  # a function becomes a method of the unit
            method(*args)

        return run

    @property
    def graphs(self) -> list[FakeGraph]:
        return list(self._graphs.values())

    def _step(self, unit: FusedUnit, batch: tuple[torch.Tensor, torch.Tensor], index: int) -> None:
        key = unit.model, batch[0].shape  # rebuilt, it has another model
        self._seen[key] = self._seen.get(key, 0) + 1
        if self._seen[key] <= 2:
            return self._train_batch(unit, batch, index)
        static = self._batches.setdefault(key, (batch[0].clone(), batch[1].clone()))
        for memory, values in zip(static, batch, strict=True):
            memory.copy_(values)
        with self._graphs.setdefault(key, FakeGraph()).step():
            self._train_batch(unit, static, index)
        unit._unread = [(at, losses.clone()) for at, losses in unit._unread]  # a replay writes to the same memory
        return None

    def _end(self, unit: FusedUnit, batch: int) -> None:
        with outside():
            self._end_steps(unit, batch)


@pytest.fixture(autouse=True)
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Native kernels are no operations of torch."""
    from nasflow.native import library

    monkeypatch.setattr(library, "_library", lambda: None)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": {"name": "adam", "lr": {"float": [1e-3, 1e300], "log": True}}, "schedule": {"name": "one_cycle"}},
        {"optimizer": {"name": "adamw", "lr": 0.01, "weight_decay": 0.1}, "gradient_clip_val": 0.5},
        {
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
            "schedule": {"name": "one_cycle", "interval": "step"},
        },
        {"optimizer": {"name": "rmsprop", "lr": 0.01}, "schedule": {"name": "cosine"}},
    ],
    ids=["adam", "adamw", "sgd", "rmsprop"],
)
def test_replayed_steps_are_the_same_bits(options: dict[str, Any], tmp_path: Path) -> None:
    """Thirty steps: with a schedule, a smaller last batch, and with Adam a member that diverges and leaves."""
    config = evaluator(**NUMBERS, **options)
    members = {
        trial: {**values, "dropout": 0.0} for trial, values in enumerate(sample("fused_spaces.py:valued", config, 5))
    }
    if "optimizer.lr" in members[0]:
        # of one shape: Adam gets the rate of a parameter that is alone in its shape as a number, which schedules change
        members = {trial: {**members[0], "optimizer.lr": 0.01 * (trial + 1)} for trial in members}
        members[BAD]["optimizer.lr"] = 1e300
    spec = make_job("fused_spaces.py:valued", config, members, fuse="always")
    plain = train(spec, tmp_path / "plain")
    with pytest.MonkeyPatch.context() as patch:
        graphed = Graphed(patch)
        events = train(spec, tmp_path / "graphed")
    assert fused_members(events) == members.keys()
    assert evictions(events).keys() == evictions(plain).keys() == ({BAD} if "optimizer.lr" in members[0] else set())
    assert len(graphed.graphs) >= 2 and sum(graph.replays for graph in graphed.graphs) >= 20
    for trial in members.keys() - evictions(plain).keys():
        assert outcome(events, tmp_path / "graphed", trial) == outcome(plain, tmp_path / "plain", trial)


def test_what_a_graph_can_not_replay_is_noticed() -> None:
    x, other, graph = torch.ones(3), torch.ones(3), FakeGraph()
    with graph.step():
        y = x * 2 + 1
    x.fill_(5)
    with graph.step():
        again = x * 2 + 1
    assert again.data_ptr() == y.data_ptr() and again.tolist() == y.tolist() == [11, 11, 11]
    with pytest.raises(NotCapturableError, match="3 instead of 2"), graph.step():
        _ = x * 3 + 1
    with pytest.raises(NotCapturableError, match="is not where it was"), graph.step():
        _ = other * 2 + 1
    with pytest.raises(NotCapturableError, match="1 operations instead of 2"), graph.step():
        _ = x * 2
    with pytest.raises(NotCapturableError, match="the host reads"), FakeGraph().step():
        (x * 2).sum().item()
