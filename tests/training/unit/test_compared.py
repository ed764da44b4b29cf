"""`merge.verify: epoch`: one member of each unit is compared with its own model at the beginning of every epoch."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nasflow.job.events import DIFFERS, Event, Planned
from nasflow.merge.kernels import linear
from nasflow.training.member.member import Member
from nasflow.training.unit import grouping
from nasflow.training.unit.fused import FusedUnit
from tests.training.fused_jobs import fused_and_apart, fused_members
from tests.training.jobs import BLOBS, evaluator, evictions, make_job, outcome, sample, train

EXACT: dict[str, Any] = {"precision": "64-true", "data": BLOBS | {"params": {"batch_size": 24}}}
IMAGES = {"target": "spaces.py:images", "params": {"batch_size": 24}}
MIXED = "fused_spaces.py:mixed"


def differing(events: list[Event]) -> dict[int, str]:
    """The reasons of those that were found to differ."""
    return {trial: why for event in events if isinstance(event, Planned) for trial, why in event.differing.items()}


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
@pytest.mark.parametrize("space", ["mixed", "images", "counting"])
def test_who_is_compared_ends_with_the_same_bits(space: str, precision: str, tmp_path: Path) -> None:
    """With dropout, batch norm and calls that are counted, while members leave at different epochs."""
    config = evaluator(
        precision=precision,
        epochs={"int": [2, 5]},
        data=IMAGES if space == "images" else EXACT["data"],
        optimizer={"name": {"pick": ["sgd", "adamw"]}, "lr": {"float": [1e-3, 1e-1], "log": True}},
        schedule={"name": "cosine"},
    )
    members = sample(f"fused_spaces.py:{space}", config, 5)
    found = {}
    for verify in ("never", "start", "epoch"):
        spec = make_job(f"fused_spaces.py:{space}", config, members, fuse="always", verify=verify)
        events = train(spec, tmp_path / verify)
        assert fused_members(events) == set(range(5))
        assert not differing(events)
        found[verify] = [outcome(events, tmp_path / verify, trial) for trial in range(5)]
    assert found["epoch"] == found["never"] == found["start"]


def test_another_member_each_epoch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of those that are still there: the last one ends after two epochs."""
    asked: dict[int, list[int]] = {}
    compare = grouping.differences

    def seen(unit: FusedUnit, subjects: Any, batch: Any, members: list[Member]) -> dict[Member, str]:
        asked[members[0].finished_epochs] = [member.number for member in members]  # the last of each epoch stays
        return compare(unit, subjects, batch, members)

    monkeypatch.setattr(grouping, "differences", seen)
    config = evaluator(**EXACT, epochs={"int": [2, 5]})
    members = {trial: {**values, "epochs": 5} for trial, values in enumerate(sample(MIXED, config, 3))}
    members[2]["epochs"] = 2
    events = train(make_job(MIXED, config, members, fuse="always", verify="epoch"), tmp_path)
    assert fused_members(events) == members.keys()
    assert all(len(numbers) == 1 for numbers in asked.values())
    assert asked[0] != asked[1]
    assert asked[2] + asked[3] in ([0, 1], [1, 0])
    assert asked[4] == asked[2]


@pytest.fixture
def defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second epoch on the weights of fused linear layers get half of their gradients."""
    product, start_epoch = linear._product, FusedUnit.start_epoch
    factor = 1.0

    def halved(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor, *args: Any, **options: Any) -> Callable[[], Any]:
        run = product(x, y, out, *args, **options)

        def call() -> None:
            run()
            if x.stride(1) == 1:  # of a gradient, transposed
                out.mul_(factor)

        return call

    def start(unit: FusedUnit) -> None:
        nonlocal factor
        factor = 0.5 if unit.members[0].finished_epochs else 1.0
        start_epoch(unit)

    monkeypatch.setattr(linear, "_product", halved)
    monkeypatch.setattr(FusedUnit, "start_epoch", start)


@pytest.mark.parametrize("every_epochs", [1, 2])
def test_a_defect_that_begins_later(defect: None, every_epochs: int, tmp_path: Path) -> None:
    """All train by themselves from then on, before any has trained with it; the last one has no other to be with."""
    config = evaluator(**EXACT, epochs=3)
    events = fused_and_apart("spaces.py:linear", config, tmp_path, 5, verify="epoch", every_epochs=every_epochs)
    assert not evictions(events)
    reasons = differing(events)
    assert len(reasons) == 4
    assert sum(why.startswith(f"{DIFFERS} in epoch 2: the gradient of ") for why in reasons.values()) == 1
    last = [event for event in events if isinstance(event, Planned)][-1]
    assert not last.units
    assert last.differing == reasons


def test_a_defect_that_nobody_looks_for(defect: None, tmp_path: Path) -> None:
    """Else the test above would say nothing."""
    config = evaluator(**EXACT, epochs=3)
    with pytest.raises(AssertionError):
        fused_and_apart("spaces.py:linear", config, tmp_path, 5, verify="start")


def test_beside_rows_of_one_who_left(defect: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing that lies in them keeps a defect from being found."""
    monkeypatch.setattr(FusedUnit, "_compact", lambda unit: None)
    config = evaluator(**EXACT, epochs=3, optimizer={"name": "sgd", "lr": {"float": [1e-3, 1e300], "log": True}})
    members = [{"classes": 3, "optimizer.lr": lr} for lr in (1e-2, 1e300, 1e-2)]
    space = "spaces.py:linear"
    events = fused_and_apart(space, config, tmp_path, dict(enumerate(members)), verify="epoch")
    assert evictions(events).keys() == {1}
    assert len(differing(events)) == 1


def test_the_last_of_a_unit(defect: None, tmp_path: Path) -> None:
    """It is not failed for what the unit does, but trains by itself."""
    config = evaluator(**EXACT, epochs={"int": [1, 3]})
    members = [{"classes": 3, "epochs": epochs} for epochs in (1, 3)]
    events = fused_and_apart("spaces.py:linear", config, tmp_path, dict(enumerate(members)), verify="epoch")
    assert not evictions(events)
    assert differing(events).keys() == {1}


@pytest.mark.parametrize("sound", [0, 1, 2])
def test_who_fails_merged_as_alone_does_not_differ(sound: int, tmp_path: Path) -> None:
    """In the first batch of the second epoch; there is one in each."""
    config = evaluator(**EXACT | {"data": BLOBS | {"params": {"batch_size": 64}}})
    space, bad = "fused_spaces.py:failing", {"fault": "raise", "after": 2}
    members = {trial: {**values, **bad} for trial, values in enumerate(sample(space, config, 3))}
    members[sound]["fault"] = "none"
    events = fused_and_apart(space, config, tmp_path, members, verify="epoch")
    assert {trial: event.epoch for trial, event in evictions(events).items()} == dict.fromkeys({0, 1, 2} - {sound}, 2)
    assert len([event for event in events if isinstance(event, Planned)]) == 1  # the unit did not break up
