"""Jobs in single precision, where native kernels run: equal to their members by themselves, and to torch's kernels."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.merge.planning import planner
from nasflow.native import library as native
from nasflow.training.batches import batch_runs
from nasflow.training.optim.native_adam import NativeAdam
from nasflow.training.unit.fused import FusedUnit
from tests.training.fused_jobs import fused_and_apart, same
from tests.training.jobs import BLOBS, evaluator, make_job, outcome, sample, train

SINGLE: dict[str, Any] = {"precision": "32-true", "epochs": 2, "data": BLOBS | {"params": {"batch_size": 24}}}
ADAM = {"name": {"pick": ["adam", "adamw"]}, "lr": {"float": [1e-3, 1e-1], "log": True}, "weight_decay": 0.1}
CLOSE = 1e-3


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    if native.library() is None:
        pytest.skip("needs a C compiler")
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Of native Adam."""
    ran: list[str] = []
    update = NativeAdam.update

    def noted(self: NativeAdam, *given: Any) -> None:
        ran.append("step")
        update(self, *given)

    monkeypatch.setattr(NativeAdam, "update", noted)
    return ran


@pytest.mark.parametrize("space", ["fused_spaces.py:mixed", "fused_spaces.py:images"])
def test_members_train_as_they_do_alone(space: str, tmp_path: Path, steps: list[str]) -> None:
    data = SINGLE["data"] if "mixed" in space else {"target": "spaces.py:images"}
    config = evaluator(**SINGLE | {"data": data}, optimizer=ADAM, label_smoothing={"pick": [0.0, 0.1]})
    fused_and_apart(space, config, tmp_path, 8, tolerance=CLOSE)
    assert steps


def test_torch_alone_comes_to_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: list[str]) -> None:
    config = evaluator(**SINGLE, optimizer=ADAM)
    drawn = dict(enumerate(sample("fused_spaces.py:mixed", config, 6)))
    with_them = train(make_job("fused_spaces.py:mixed", config, drawn, fuse="always"), tmp_path / "with")
    ran = len(steps)
    monkeypatch.setattr(native, "_library", lambda: None)
    without = train(make_job("fused_spaces.py:mixed", config, drawn, fuse="always"), tmp_path / "without")
    assert len(steps) == ran > 0
    for trial in drawn:
        same(outcome(with_them, tmp_path / "with", trial), outcome(without, tmp_path / "without", trial), CLOSE)


def test_several_batches_in_a_row_are_those_one_by_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Units of two members: bit for bit the same, whether each takes a batch or many before the next one does."""
    config = evaluator(**SINGLE, optimizer=ADAM)
    drawn = dict(enumerate(sample("fused_spaces.py:mixed", config, 6)))
    pairs = lambda self, parts, limit, shared: [[i, i + 1] for i in range(0, len(parts[0]), 2)]  # noqa: E731
    monkeypatch.setattr(planner.Planner, "partition", pairs)
    took: list[int] = []
    train_batch = FusedUnit.train_batch

    def noted(self: FusedUnit, batch: Any, index: int) -> None:
        took.append(id(self))
        train_batch(self, batch, index)

    monkeypatch.setattr(FusedUnit, "train_batch", noted)
    many = train(make_job("fused_spaces.py:mixed", config, drawn, fuse="always"), tmp_path / "many")
    assert took[0] == took[1]
    took.clear()
    monkeypatch.setattr(batch_runs, "_MOST", 1)
    single = train(make_job("fused_spaces.py:mixed", config, drawn, fuse="always"), tmp_path / "single")
    assert took[0] != took[1] and len(set(took)) == 3
    for trial in drawn:
        same(outcome(many, tmp_path / "many", trial), outcome(single, tmp_path / "single", trial), 0.0)
