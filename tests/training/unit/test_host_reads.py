"""Within a run of batches, the host reads nothing from the device: what was found is read at its end."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.errors import TrialError
from nasflow.training.batches import batch_runs
from nasflow.training.unit.fused import FusedUnit
from tests.host_reads import HostReads
from tests.training.fused_jobs import fused_members
from tests.training.jobs import BLOBS, evaluator, evictions, make_job, outcome, sample, train

ROWS: dict[str, Any] = {"epochs": 2, "data": BLOBS | {"params": {"batch_size": 24}}}
IMAGES: dict[str, Any] = {"epochs": 2, "data": {"target": "spaces.py:images", "params": {"batch_size": 24}}}
NUMBERS: dict[str, Any] = {"epochs": 2, "kind": "regression", "data": {"target": "fused_spaces.py:numbers"}}
BY_STEP = {"name": "one_cycle", "interval": "step"}
LR = {"float": [1e-3, 1e300], "log": True}
BAD = 2


@pytest.mark.parametrize(
    "look",
    [
        lambda x: bool(x.isfinite().all()),
        lambda x: x.tolist(),
        lambda x: x.sum().item(),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: torch.equal(x, x),
        lambda x: x.unique(),
        lambda x: x.numpy(),
    ],
)
def test_a_read_is_noticed(look: Callable[[torch.Tensor], object]) -> None:
    with HostReads() as reads:
        look(torch.ones(3))
    assert reads.found


@pytest.mark.parametrize(
    ("space", "options"),
    [
        ("mixed", {**ROWS, "optimizer": {"name": "adamw", "lr": 0.01}, "gradient_clip_val": 0.5, "schedule": BY_STEP}),
        ("images", {**IMAGES, "optimizer": {"name": "rmsprop", "weight_decay": 0.1}, "accumulate_grad_batches": 2}),
        ("valued", {**NUMBERS, "optimizer": {"name": "sgd", "momentum": 0.9}, "precision": "bf16-mixed"}),
        ("valued", {**NUMBERS, "optimizer": {"name": "adam"}, "precision": "64-true", "schedule": BY_STEP}),
    ],
)
def test_steps_read_nothing(
    space: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the end of a run reads once, whether its losses are finite."""
    steps: list[list[str]] = []
    ends: list[list[str]] = []

    def counted(method: Callable[..., None], found: list[list[str]]) -> Callable[..., None]:
        def run(*args: Any) -> None:
            with HostReads() as reads:
                method(*args)
            found.append(reads.found)

        return run

    monkeypatch.setattr(FusedUnit, "train_batch", counted(FusedUnit.train_batch, steps))
    monkeypatch.setattr(FusedUnit, "end_run", counted(FusedUnit.end_run, ends))
    config = evaluator(**options)
    members = dict(enumerate(sample(f"fused_spaces.py:{space}", config, 4)))
    events = train(make_job(f"fused_spaces.py:{space}", config, members, fuse="always"), tmp_path)
    assert len(fused_members(events)) == 4
    assert len(steps) > len(ends) >= 2
    assert not any(steps), steps
    assert all(names == ["__bool__", "_local_scalar_dense"] for names in ends), ends


@pytest.mark.parametrize("space", ["mixed", "images"])
def test_a_member_that_diverges_is_evicted_as_if_each_batch_were_read(
    space: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same step and reason are reported, and the others have the same bits."""
    options = {**(IMAGES if space == "images" else ROWS), "optimizer": {"name": "adamw", "lr": LR}}
    config = evaluator(**options, schedule=BY_STEP)
    members = dict(enumerate(sample(f"fused_spaces.py:{space}", config, 5)))
    for trial, values in members.items():
        members[trial] = {**values, "optimizer.lr": 1e300 if trial == BAD else 0.01}
    spec = make_job(f"fused_spaces.py:{space}", config, members, fuse="always")
    found = {}
    for most in (64, 1):
        monkeypatch.setattr(batch_runs, "_MOST", most)
        found[most] = train(spec, tmp_path / str(most))
    late, at_once = (evictions(events) for events in found.values())
    assert (late[BAD].epoch, late[BAD].error) == (at_once[BAD].epoch, at_once[BAD].error)
    assert late.keys() == at_once.keys() == {BAD}
    assert "in epoch 1, step " in late[BAD].error and "step 0" not in late[BAD].error
    for trial in members.keys() - {BAD}:
        assert outcome(found[64], tmp_path / "64", trial) == outcome(found[1], tmp_path / "1", trial)


@pytest.mark.parametrize("count", [1, 4])
def test_what_fails_later_in_the_run_is_not_the_reason(
    count: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A member has diverged when its whole unit fails; the others train again, without it."""
    config = evaluator(**ROWS, optimizer={"name": "adamw", "lr": LR})
    members = dict(enumerate(sample("fused_spaces.py:mixed", config, count)))
    bad = min(BAD, count - 1)
    for trial, values in members.items():
        members[trial] = {**values, "optimizer.lr": 1e300 if trial == bad else 0.01}
    train_batch, failures = FusedUnit.train_batch, []

    def failing(unit: FusedUnit, batch: Any, index: int) -> None:
        if index == 2 and not failures:
            failures.append(len(unit.members))
            raise TrialError("the whole unit failed")
        train_batch(unit, batch, index)

    monkeypatch.setattr(FusedUnit, "train_batch", failing)
    events = train(make_job("fused_spaces.py:mixed", config, members, fuse="always"), tmp_path)
    assert failures == [count]
    assert evictions(events).keys() == {bad}
    assert "training loss is" in evictions(events)[bad].error


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("space", ["mixed", "images"])
def test_steps_wait_for_no_gpu(space: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """After the first epoch, in which kernels may be chosen and memory is laid out."""
    train_batch, watched = FusedUnit.train_batch, []

    def step(unit: FusedUnit, batch: Any, index: int) -> None:
        if unit.members and unit.members[0].finished_epochs:
            torch.cuda.set_sync_debug_mode("error")
            watched.append(index)
        try:
            train_batch(unit, batch, index)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    monkeypatch.setattr(FusedUnit, "train_batch", step)
    config = evaluator(**(IMAGES if space == "images" else ROWS), optimizer={"name": "adamw", "lr": 0.01})
    members = {
        trial: {name: 0.0 if name.startswith("drop") else value for name, value in values.items()}
        for trial, values in enumerate(sample(f"fused_spaces.py:{space}", config, 4))
    }
    events = train(make_job(f"fused_spaces.py:{space}", config, members, fuse="always"), tmp_path)
    assert watched
    assert not evictions(events)
