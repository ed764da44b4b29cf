"""LightningModules whose steps call parts of their models are fused part by part."""

from pathlib import Path
from typing import Any

import pytest

from nasflow.job.events import Planned
from nasflow.training.dry_run import JobPlan, rehearse
from nasflow.training.unit.reasons import CHANGES
from tests.training.fused_jobs import fused_and_apart, fused_members, same
from tests.training.interrupted import interrupted
from tests.training.jobs import evaluator, evictions, make_job, outcome, sample, train, weights

MIXED, CODED = "fused_spaces.py:mixed", "parts_modules.py:autoencoder"
VARIATIONAL = "parts_modules.py:variational"

STYLES = {
    "BackboneHead": (MIXED, ["backbone", "head"]),
    "DetachedHead": (MIXED, ["backbone", "head"]),
    "SkipsHead": (MIXED, ["backbone", "head"]),
    "Heads": (MIXED, ["backbone", "head.0", "head.1.1"]),
    "Reconstructs": (CODED, ["model.encoder", "model.decoder"]),
    "Bounded": (VARIATIONAL, ["encoder", "mean", "log_variance", "expand", "decoder"]),
    "BoundedForward": (VARIATIONAL, ["encoder", "mean", "log_variance", "expand", "decoder"]),
    "Distills": (MIXED, ["teacher", ""]),
    "DistillsWithGrad": (MIXED, ["teacher", ""]),
    "Perceptual": (CODED, ["model.encoder", "model.decoder", "judge"]),
    "EarlyAverage": (MIXED, ["student", "teacher"]),
}


def lightning(name: str, **values: Any) -> Any:
    params = {"lr": {"float": [1e-2, 1e-1]}, **values.pop("params", {})}
    module = {"target": f"parts_modules.py:{name}", "params": params}
    data = {"target": "spaces.py:blobs"}
    return evaluator(kind="lightning", module=module, data=data, **{"precision": "64-true", "epochs": 3, **values})


def plan(space: str, config: Any, count: int = 4) -> JobPlan:
    return rehearse(make_job(space, config, sample(space, config, count), fuse="always"))


@pytest.mark.parametrize("name", STYLES)
def test_a_style(name: str, tmp_path: Path) -> None:
    space, parts = STYLES[name]
    config = lightning(name)
    fused_and_apart(space, config, tmp_path, 4)
    assert [unit.part.removeprefix("model." * (space == VARIATIONAL)) for unit in plan(space, config).units] == parts


def test_layers_that_are_called_one_by_one(tmp_path: Path) -> None:
    """Members are fused whose values have the same shapes where they meet."""
    config = lightning("LayerByLayer")
    same_shapes = {"depth": 1, "width0": 4, "norm": "layer"}
    drawn = {trial: {**one, **same_shapes} for trial, one in enumerate(sample(MIXED, config, 4))}
    for one in drawn.values():
        one.pop("width1", None)
    fused_and_apart(MIXED, config, tmp_path, drawn)


def test_an_equal_teacher_is_computed_once() -> None:
    teacher, student = plan(MIXED, lightning("Distills")).units
    assert {step.kind for step in teacher.outline.steps} == {"input", "shared"}
    assert "shared" not in {step.kind for step in student.outline.steps}
    _, averaged = plan(MIXED, lightning("EarlyAverage")).units
    assert "shared" not in {step.kind for step in averaged.outline.steps}


def test_a_shared_teacher_that_changes_later_is_noticed(tmp_path: Path) -> None:
    events = fused_and_apart(MIXED, lightning("LateAverage"), tmp_path, 3)
    assert CHANGES in [text for event in events if isinstance(event, Planned) for text in event.alone.values()]


@pytest.mark.parametrize("where", ["between", "after"])
def test_a_member_that_raises_changes_no_bit_of_the_others(where: str, tmp_path: Path) -> None:
    drawn = sample(MIXED, lightning("BackboneHead"), 4)
    outcomes = {}
    for how in ("", f"raise {where}"):
        config = lightning("BackboneHead", params={"how": {"pick": ["", f"raise {where}"]}})
        members = {trial: {**drawn[trial], "module.params.how": how if trial == 1 else ""} for trial in range(4)}
        events = train(make_job(MIXED, config, members, fuse="always"), tmp_path / f"all-{how}")
        assert fused_members(events) == {0, 1, 2, 3}
        assert list(evictions(events)) == ([1] if how else [])
        outcomes[how] = {trial: outcome(events, tmp_path / f"all-{how}", trial) for trial in (0, 2, 3)}
    for trial, one in outcomes[""].items():
        same(one, outcomes[f"raise {where}"][trial], 0.0)


def test_members_that_end_at_different_epochs(tmp_path: Path) -> None:
    fused_and_apart(CODED, lightning("Reconstructs", epochs={"pick": [1, 2, 4]}), tmp_path, 5)


def test_an_interrupted_job_goes_on_to_the_same_bits(tmp_path: Path) -> None:
    config = lightning("Reconstructs")
    spec = make_job(CODED, config, sample(CODED, config, 3), fuse="always")
    whole = train(spec, tmp_path / "whole")
    interrupted(spec, tmp_path / "stopped", 1, 2)
    events = train(spec, tmp_path / "stopped")
    for trial in range(3):
        same(outcome(whole, tmp_path / "whole", trial), outcome(events, tmp_path / "stopped", trial), 0.0)


def test_names_in_a_state_dict_stay(tmp_path: Path) -> None:
    fused_and_apart(MIXED, lightning("BackboneHead"), tmp_path, 3)
    names = [list(weights(tmp_path / where, 1)) for where in ("fused", "apart")]
    assert names[0] == names[1]
    assert all(name.startswith(("backbone.", "head.")) for name in names[0])


@pytest.mark.parametrize("name", ["Reconstructs", "Distills"])
def test_parts_whose_fusion_is_measured(name: str, tmp_path: Path) -> None:
    """In single precision, with the defaults of a search."""
    config = lightning(name, precision="32-true", epochs=1)
    fused_and_apart(STYLES[name][0], config, tmp_path, 5, tolerance=1e-2, all_fused=False, fuse="measured")
