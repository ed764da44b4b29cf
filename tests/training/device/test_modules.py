"""Trials of all kinds of users' modules, data and settings on two devices of a job, beside the same on one."""

from pathlib import Path
from typing import Any

import pytest

from tests.training.device.test_devices import spread
from tests.training.fused_jobs import same
from tests.training.interrupted import interrupted
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train
from tests.training.unit.test_lockstep import lightning

MIXED = "fused_spaces.py:mixed"


def compared(space: str, config: Any, root: Path, count: int = 5, **changes: Any) -> None:
    """Train trials on one device and on two, one by one and fused: the same becomes of each."""
    members = sample(space, config, count)
    specs = {fuse: make_job(space, config, members, fuse=fuse).model_copy(update=changes) for fuse in FUSE}
    one = train(specs["never"], root / "one")
    for fuse in FUSE:
        two = train(spread(specs[fuse], 2), root / fuse)
        assert evictions(two).keys() == evictions(one).keys()
        for trial in set(range(count)) - evictions(one).keys():
            tolerance = 0.0 if fuse == "never" else 1e-9
            same(outcome(two, root / fuse, trial), outcome(one, root / "one", trial), tolerance)


FUSE: tuple[Any, ...] = ("never", "always")


@pytest.mark.long
@pytest.mark.parametrize(
    ("file", "name"),
    [
        *(("lockstep_modules.py", name) for name in ("Mixup", "OwnParameter", "Teacher", "SometimesNone", "Unfreezes")),
        *(("hooked_modules.py", name) for name in ("Watches", "ScalesGradients", "AddsLayers", "BringsCallbacks")),
        *(("hooked_modules.py", name) for name in ("Remembers", "Adversaries", "Thaws", "BringsAveraging")),
        *(("parts_modules.py", name) for name in ("BackboneHead", "Heads", "Distills", "LateAverage")),
        *(("recorded_modules.py", name) for name in ("ByGlobal", "WritesTargets", "WritesViews", "ByIndex")),
        *(("joint_modules.py", name) for name in ("SkipsSome", "Diverges", "Collects")),
    ],
)
def test_a_module(file: str, name: str, tmp_path: Path) -> None:
    compared(MIXED, lightning(name, file=file, epochs=2), tmp_path)


@pytest.mark.parametrize("how", ["always", "late"])
def test_a_step_that_writes_into_its_batch(how: str, tmp_path: Path) -> None:
    """What the trials of one device write, those of the other must not see."""
    compared(MIXED, lightning("Noisy", file="lightning_modules.py", params={"how": {"pick": [how]}}), tmp_path)


@pytest.mark.long
@pytest.mark.parametrize(
    ("space", "values"),
    [
        (MIXED, {"ema": {"decay": 0.9}}),
        (MIXED, {"accumulate_grad_batches": 2}),
        (MIXED, {"gradient_clip_val": 0.1}),
        (MIXED, {"optimizer": {"name": "adamw", "lr": {"float": [1e-3, 1e-1]}}, "epochs": {"pick": [1, 2, 4]}}),
        (MIXED, {"schedule": {"name": "one_cycle", "interval": "step"}}),
        (MIXED, {"early_stopping": {"patience": 1}, "epochs": 4}),
        (MIXED, {"batches_per_epoch": 2, "validate_every": 2, "epochs": 4}),
        (MIXED, {"data": {"target": "spaces.py:augmented"}}),
        (MIXED, {"data": {"target": "spaces.py:TransferAugmented"}}),
        (MIXED, {"data": {"target": "spaces.py:unsized"}}),
        (MIXED, {"data": {"target": "spaces.py:sampled"}}),
        (MIXED, {"data": {"target": "fused_spaces.py:ones"}}),
        ("fused_spaces.py:frozen_trunk", {}),
        ("fused_spaces.py:failing", {}),
        ("fused_spaces.py:images", {"data": {"target": "spaces.py:images"}}),
        ("lazy_spaces.py:rows", {"data": {"target": "lazy_spaces.py:doubles"}}),
        ("outside_spaces.py:trunk", {}),
        ("stranger_spaces.py:stranger", {"data": {"target": "stranger_spaces.py:rows"}}),
    ],
)
def test_a_setting(space: str, values: dict[str, Any], tmp_path: Path) -> None:
    compared(space, evaluator(**{"precision": "64-true", "epochs": 2, **values}), tmp_path)


def test_fewer_places_than_trials_and_more_devices_than_places(tmp_path: Path) -> None:
    compared(MIXED, evaluator(precision="64-true", epochs={"pick": [1, 2, 3]}), tmp_path, 6, places=1)


def test_device_numbers_with_gaps(tmp_path: Path) -> None:
    """A job of the trials that were left over from one with six devices."""
    config = evaluator(precision="64-true")
    spec = make_job(MIXED, config, sample(MIXED, config, 3), fuse="always")
    one = train(spec, tmp_path / "one")
    gaps = [
        member.model_copy(update={"device": device}) for member, device in zip(spec.members, (5, 0, 5), strict=True)
    ]
    some = train(spec.model_copy(update={"members": gaps}), tmp_path / "some")
    for trial in range(3):
        same(outcome(some, tmp_path / "some", trial), outcome(one, tmp_path / "one", trial), 1e-9)


@pytest.mark.parametrize("values", [{"folds": 3}, {"repeats": 2}])
def test_interrupted_folds_and_repeats(values: dict[str, int], tmp_path: Path) -> None:
    config = evaluator(precision="64-true", epochs=3, **values)
    spec = make_job(MIXED, config, sample(MIXED, config, 4), fuse="always")
    one = train(spec, tmp_path / "one")
    interrupted(spread(spec, 2), tmp_path / "parts", 2, 1)
    interrupted(spread(spec, 4), tmp_path / "parts", 1, 2)
    events = train(spread(spec, 3), tmp_path / "parts")
    for trial in range(4):
        same(outcome(events, tmp_path / "parts", trial), outcome(one, tmp_path / "one", trial), 1e-9)
